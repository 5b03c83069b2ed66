"""The effects of scripted faults on brokers, connections and responses.

`connections` calls these functions for the faults that FaultScript found for a request. Scripted errors and omitted
partitions are left to the handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aioproducer.protocol.messages import ProduceRequest
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded.broker import CloseConnection
from aioproducer.testing.embedded.cluster_state import ClusterState
from aioproducer.testing.embedded.faults import Fault, ImpossibleFaultError, Target
from aioproducer.testing.embedded.tls_streams import Writer


def strike(
    cluster: ClusterState, node: int, faults: Sequence[Fault], targets: Sequence[Target], *, late: bool
) -> None:
    """Move leaders, freeze the broker or take it down.

    Args:
        cluster: The broker's cluster.
        node: The broker that has read the request.
        faults: The faults that apply to the request.
        targets: The topics and partitions that the request names.
        late: Whether the request has already been served.

    Raises:
        CloseConnection: the broker is down.
        ImpossibleFaultError: a leader can't move as scripted.
    """
    for fault in faults:
        if fault.after_append is not late:
            continue
        if fault.move_leader_to is not None:
            _move_leaders(cluster, fault, targets)
        if fault.freeze_for is not None and not cluster.broker(node).is_frozen:
            cluster.broker(node).freeze(fault.freeze_for)
        if fault.down_for is not None:
            cluster.crash_broker(node, fault.down_for)
            raise CloseConnection("a scripted fault takes the broker down")


def _move_leaders(cluster: ClusterState, fault: Fault, targets: Sequence[Target]) -> None:
    assert fault.move_leader_to is not None
    for name, index in targets:
        topic = cluster.topics.get(name)
        for partition in topic.partitions if topic is not None else ():
            if index in (None, partition.index) and fault.concerns(name, partition.index):
                try:
                    cluster.move_leader(name, partition.index, fault.move_leader_to)
                except ValueError as error:
                    raise ImpossibleFaultError(
                        f"the fault that was scripted for {fault.api_key.name} (move_leader_to="
                        f"{fault.move_leader_to}) can't be carried out: {error}"
                    ) from error


async def hold_back(faults: Sequence[Fault]) -> None:
    """Wait before serving a request. During the wait, the broker does not notice a closed connection."""
    for fault in faults:
        if fault.hold_before is not None:
            await fault.hold_before.wait()


async def delay(faults: Sequence[Fault]) -> None:
    """Wait between serving a request and answering it.

    Raises:
        CloseConnection: a scripted fault drops the response.
    """
    for fault in faults:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.hold is not None:
            await fault.hold.wait()
    if any(fault.drop_after_append for fault in faults):
        raise CloseConnection("a scripted fault closed the connection after the request was served")


async def write(writer: Writer, segments: Sequence[bytes | memoryview], faults: Sequence[Fault]) -> None:
    """Send a response: whole, in pieces, or truncated.

    Raises:
        CloseConnection: the response was truncated.
    """
    ends = [fault.truncate for fault in faults if fault.truncate is not None]
    trickle = next((fault for fault in faults if fault.trickle is not None), None)
    # After a connection is lost, asyncio's `writelines` (at least in 3.12.0 to 3.13.0) adds the closed socket to the
    # selector. The next connection with that descriptor is then not served. `write` does not have this defect.
    data = b"".join(segments)[: min(ends, default=None)]
    size = len(data) if trickle is None or trickle.trickle is None else trickle.trickle
    for start in range(0, len(data), max(size, 1)):
        if start and trickle is not None:
            await asyncio.sleep(trickle.trickle_pause)
        writer.write(data[start : start + size])
        await writer.drain()
    if ends:
        raise CloseConnection(
            f"a scripted fault closes the connection after {len(data)} bytes of the response"
        )


def forget_records(message: Message) -> None:
    """Drop the record bytes of a request; the request itself stays in `EmbeddedCluster.requests`."""
    if isinstance(message, ProduceRequest):
        for topic in message.topic_data:
            for data in topic.partition_data:
                data.records = None
