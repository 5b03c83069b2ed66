"""Kafka for tests: a cluster in this process with faults by script, and a real Apache Kafka beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioproducer.testing.cluster import EmbeddedCluster

if TYPE_CHECKING:
    from aioproducer.testing.apache import ApacheKafka

__all__ = ["ApacheKafka", "EmbeddedCluster"]


def __getattr__(name: str) -> object:
    # Imported when wanted: it runs on POSIX only and takes what the embedded cluster does not need.
    if name == "ApacheKafka":
        from aioproducer.testing.apache import ApacheKafka

        return ApacheKafka
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
