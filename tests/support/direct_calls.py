"""Passes requests directly to the handlers of an embedded cluster, without sockets and frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aioproducer.protocol.api import RequestHeader
from aioproducer.protocol.schema import Message
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.authorizer import ANONYMOUS
from aioproducer.testing.embedded.faults import Fault
from aioproducer.testing.embedded.request_context import RequestContext, SeenRequest, Session


def unstarted_cluster(topics: Mapping[str, int], brokers: int = 1, **settings: object) -> EmbeddedCluster:
    """A cluster whose brokers do not listen. Partitions have their initial leaders and replicas."""
    cluster = EmbeddedCluster(brokers, **settings)
    for name, partitions in topics.items():
        for partition in cluster.create_topic(name, partitions).partitions:
            partition.isr = list(partition.replicas)
            partition.leader = partition.replicas[0]
    return cluster


def context_of(
    cluster: EmbeddedCluster,
    request: Message,
    version: int,
    *,
    node: int = 0,
    faults: Sequence[Fault] = (),
    principal: str = ANONYMOUS,
) -> RequestContext:
    """The context that a broker would create for this request."""
    header = RequestHeader(request.api_key, version, 1, "direct")
    return RequestContext(
        cluster, node, SeenRequest(node, header, request, 0.0), list(faults), Session(principal)
    )
