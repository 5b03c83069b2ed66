"""An answer about topics, taken over in one go."""

from __future__ import annotations

from collections.abc import Collection

from aioproducer.cluster import Cluster
from aioproducer.protocol.messages import MetadataResponse


def merged(cluster: Cluster, response: MetadataResponse, asked: Collection[str]) -> Cluster:
    """The snapshot after an answer about the topics `asked`."""
    steps = cluster.merging(response, asked)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
