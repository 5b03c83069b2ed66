"""The parts of flights_demo.py: data, clusters, the topic, sending, the proof, the report."""

from __future__ import annotations


class DemoError(Exception):
    """An error that ends the demo; the text is shown to the user."""
