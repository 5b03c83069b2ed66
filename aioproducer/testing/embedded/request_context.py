"""One request on its way through a broker: the object that `connections` passes to the handlers.

RequestContext contains the scripted faults for the request; handlers ask it for the scripted error of each partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing.embedded.authorizer import Operation, ResourceType
from aioproducer.testing.embedded.broker_security import Session
from aioproducer.testing.embedded.cluster_state import ClusterState
from aioproducer.testing.embedded.faults import Fault
from aioproducer.testing.embedded.inspection import SeenRequest
from aioproducer.testing.embedded.releases import Release


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request on its way through a broker: client, broker, request and scripted faults."""

    cluster: ClusterState
    node: int
    seen: SeenRequest
    faults: list[Fault]
    session: Session = field(default_factory=Session)

    @property
    def version(self) -> int:
        """The version of the request and of its response."""
        return self.seen.header.version

    @property
    def release(self) -> Release:
        """The release whose behaviour the broker imitates."""
        return self.cluster.broker(self.node).release

    def denied(self, operation: Operation, resource_type: ResourceType, name: str) -> ErrorCode | None:
        """Return the error if this client is denied the operation; see `Authorizer`."""
        return self.cluster.authorizer.refusal(self.session.principal, operation, resource_type, name)

    def refusal(self, topic: str | None = None, partition: int | None = None) -> ErrorCode | None:
        """Return the scripted error that replaces the normal result; None if there is none."""
        return self._scripted(False, topic, partition)

    def late_error(self, topic: str | None = None, partition: int | None = None) -> ErrorCode | None:
        """Return the scripted error that is sent after the request has been carried out; None if there is none."""
        return self._scripted(True, topic, partition)

    def omits(self, topic: str, partition: int | None = None) -> bool:
        """Return True if the script omits this topic or partition from the response."""
        return any(
            fault.omit_partitions and fault.concerns(topic, partition) and _as_narrow(fault, topic, partition)
            for fault in self.faults
        )

    def _scripted(self, late: bool, topic: str | None, partition: int | None) -> ErrorCode | None:
        for fault in self.faults:
            if fault.error is None or fault.after_append is not late or not fault.concerns(topic, partition):
                continue
            if _as_narrow(fault, topic, partition):
                return fault.error
        return None


def _as_narrow(fault: Fault, topic: str | None, partition: int | None) -> bool:
    """Return False if the fault is limited to a topic or a partition, but the caller asks about something broader.

    A fault for one topic does not apply to a whole request, nor does one for a partition apply to a whole topic."""
    return (fault.topic is None or topic is not None) and (fault.partition is None or partition is not None)
