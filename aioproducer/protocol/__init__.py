"""Kafka's wire protocol: messages as declarations, compiled codecs, frames, error codes. No I/O, no clock."""
