"""Merges a Metadata response into a cluster snapshot in one call."""

from __future__ import annotations

from collections.abc import Collection

from aioproducer.cluster import Cluster
from aioproducer.protocol.messages import MetadataResponse


def merged(cluster: Cluster, response: MetadataResponse, asked: Collection[str]) -> Cluster:
    """The snapshot after the response to a request for the topics `asked`."""
    steps = cluster.merging(response, asked)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
