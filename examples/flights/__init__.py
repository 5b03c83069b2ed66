"""The parts of flights_demo.py: data, where Kafka is, the topic, sending, the proof, the report."""

from __future__ import annotations


class DemoError(Exception):
    """The demo can't go on; the text is meant for its user."""
