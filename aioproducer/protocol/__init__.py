"""Kafka's wire protocol: declared messages, compiled codecs, frames, error codes. No I/O, no clock."""
