"""Scripted faults: which requests fail, how, and how often.

Tests add faults, and each broker takes those that match the request that it has just read. This module only selects
faults. fault_effects applies them to brokers, connections and responses; the handlers apply errors and omissions.
VerificationFaults affect the questions that leaders ask coordinators, which are function calls here, not requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.types import TopicPartition

Target: TypeAlias = tuple[str, int | None]
"""A topic and a partition that a request names; None stands for the topic as a whole."""


class ImpossibleFaultError(ValueError):
    """A scripted fault can't be carried out in the current state of the cluster; the script has an error."""


@dataclass(slots=True, eq=False)
class Fault:
    """A fault for the next `count` matching requests. `FaultScript.add` describes the fields."""

    api_key: ApiKey
    node: int | None
    topic: str | None
    partition: int | None
    count: int
    error: ErrorCode | None
    after_append: bool
    drop_before: bool
    hold_before: asyncio.Event | None
    drop_after_append: bool
    delay: float
    hold: asyncio.Event | None
    truncate: int | None
    wrong_correlation_id: bool
    omit_partitions: bool
    throttle_ms: int
    trickle: int | None
    trickle_pause: float
    move_leader_to: int | None
    down_for: float | None
    freeze_for: float | None
    skip: int
    """The number of further matching requests that will pass unaffected."""
    hits: int = 0
    """The number of requests that have hit this fault so far."""
    _hit: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_used_up(self) -> bool:
        """True if no further request will hit the fault."""
        return self.hits >= self.count

    async def reached(self, hits: int = 1) -> None:
        """Wait until `hits` requests have hit this fault. Wrap the call in asyncio.timeout()."""
        while self.hits < hits:
            await self._hit.wait()
            self._hit.clear()

    def concerns(self, topic: str | None, partition: int | None = None) -> bool:
        """Return True if the fault covers this partition. None, as an argument or in the fault, means any."""
        return (self.topic is None or topic is None or self.topic == topic) and (
            self.partition is None or partition is None or self.partition == partition
        )

    def fits(self, api_key: ApiKey, node: int, targets: Sequence[Target]) -> bool:
        """Return True if the fault covers a request to `node`, or a part of the request."""
        if self.api_key != api_key or (self.node is not None and self.node != node):
            return False
        if self.topic is None and self.partition is None:
            return True
        return any(self.concerns(topic, partition) for topic, partition in targets)

    def take(self) -> None:
        """Count one request that hit this fault."""
        self.hits += 1
        self._hit.set()


class FaultScript:
    """The faults of a cluster, in the order in which they were added."""

    def __init__(self, brokers: int | None = None) -> None:
        """Create an empty script for a cluster of `brokers` brokers; None if the number is not known."""
        self._brokers = brokers
        self._faults: list[Fault] = []

    def __iter__(self) -> Iterator[Fault]:
        """Iterate over the faults that are not used up yet."""
        return iter([fault for fault in self._faults if not fault.is_used_up])

    def add(
        self,
        api_key: ApiKey,
        *,
        error: int | None = None,
        after_append: bool = False,
        drop_before: bool = False,
        hold_before: asyncio.Event | None = None,
        drop_after_append: bool = False,
        delay: float = 0.0,
        hold: asyncio.Event | None = None,
        truncate: int | None = None,
        wrong_correlation_id: bool = False,
        omit_partitions: bool = False,
        throttle_ms: int = 0,
        trickle: int | None = None,
        trickle_pause: float = 0.0,
        move_leader_to: int | None = None,
        down_for: float | None = None,
        freeze_for: float | None = None,
        node: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        skip: int = 0,
        count: int = 1,
    ) -> Fault:
        """Make the next `count` matching requests fail.

        Faults with the same target apply one after another: the second begins when the first is used up. Faults for
        different partitions can affect the same request. All effects of one fault apply to the same request, in this
        order:

        1. Leaders move, and the broker freezes or goes down. With `after_append`, this follows step 4.
        2. The connection is closed (`drop_before`).
        3. The request waits (`hold_before`).
        4. The request is served, with errors and omissions.
        5. The response waits (`delay`, `hold`).
        6. The connection is closed (`drop_after_append`).
        7. The response is sent: altered, in pieces, or truncated.
        8. The connection is ignored for the throttle time.

        Args:
            api_key: The API of the requests that fail.
            error: The error code for the affected partitions or topics, or for the whole request. Unless `after_append`
                is set, the broker does nothing else for them.
            after_append: Carry out the request first; then respond with `error`, move leaders, freeze or go down. Only
                Produce and transactional requests can combine `after_append` with `error`.
            drop_before: Close the connection instead of serving the request.
            hold_before: Serve the request only once this event is set, even if the client has closed its connection by
                then. This simulates a request that is delayed and arrives after records that were sent later.
            drop_after_append: Serve the request, then close the connection without a response.
            delay: Seconds between serving the request and answering it. In the meantime, nothing else is read from
                the connection. A quota with `request_percentage` counts this time as work.
            hold: Like `delay`, but until this event is set.
            truncate: Send only this many bytes of the response, then close the connection.
            wrong_correlation_id: Send a response whose correlation id does not match the request.
            omit_partitions: Leave the affected partitions or topics out of the response.
            throttle_ms: Respond with this throttle time, then read nothing from the connection for that long.
            trickle: Send the response in pieces of this many bytes.
            trickle_pause: Seconds between these pieces.
            move_leader_to: Make this broker the leader of the affected partitions, in a new leader epoch. If it is
                stopped or has no replica when the fault applies to a request, the request's connection is closed and
                an `ImpossibleFaultError` is added to `EmbeddedCluster.failures`.
            down_for: The broker that has read the request goes down as in a crash and comes back after this
                many seconds; with math.inf, it stays down until `EmbeddedCluster.start_broker` is called.
            freeze_for: The broker that has read the request freezes for this many seconds; with math.inf, until
                `EmbeddedCluster.thaw_broker` is called.
            node: Only requests to this broker.
            topic: Only requests for this topic; other topics in the same request are served.
            partition: Only this partition; other partitions in the same request are served.
            skip: Let this many matching requests pass first. With skip=2, the third one fails.
            count: The number of requests that fail.

        Returns:
            The fault; its `hits` and `reached()` show its progress.

        Raises:
            ValueError: the fault does nothing, a number is invalid, two arguments are mutually exclusive, or a broker
                does not exist.
        """
        fault = Fault(
            api_key=ApiKey(api_key),
            node=node,
            topic=topic,
            partition=partition,
            count=count,
            error=None if error is None else ErrorCode(error),
            after_append=after_append,
            drop_before=drop_before,
            hold_before=hold_before,
            drop_after_append=drop_after_append,
            delay=delay,
            hold=hold,
            truncate=truncate,
            wrong_correlation_id=wrong_correlation_id,
            omit_partitions=omit_partitions,
            throttle_ms=throttle_ms,
            trickle=trickle,
            trickle_pause=trickle_pause,
            move_leader_to=move_leader_to,
            down_for=down_for,
            freeze_for=freeze_for,
            skip=skip,
        )
        _check(fault)
        self._check_brokers(fault)
        self._faults.append(fault)
        return fault

    def _check_brokers(self, fault: Fault) -> None:
        for name in ("node", "move_leader_to"):
            value = getattr(fault, name)
            if value is not None and self._brokers is not None and not 0 <= value < self._brokers:
                raise ValueError(
                    f"{name}={value} is not a broker in this cluster; the node ids are 0 to {self._brokers - 1}"
                )

    def clear(self) -> None:
        """Remove all faults. Requests that have already hit one are still affected."""
        self._faults.clear()

    def take(self, api_key: ApiKey, node: int, targets: Sequence[Target]) -> list[Fault]:
        """Return the faults that apply to a request; if faults have overlapping targets, only the first applies."""
        taken: list[Fault] = []
        for fault in self:
            if not fault.fits(api_key, node, targets):
                continue
            if any(fault.concerns(other.topic, other.partition) for other in taken):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.take()
            taken.append(fault)
        return taken


def _check(fault: Fault) -> None:
    """Raise ValueError if the fault is invalid."""
    late = (fault.error, fault.move_leader_to, fault.down_for, fault.freeze_for)
    wishes = (*late, fault.hold, fault.hold_before, fault.truncate, fault.trickle)
    flags = (fault.drop_before, fault.drop_after_append, fault.wrong_correlation_id, fault.omit_partitions)
    if not any(flags) and not fault.delay and not fault.throttle_ms and not _any_of(wishes):
        raise ValueError("this fault does nothing")
    if fault.after_append and not _any_of(late):
        raise ValueError(
            "after_append applies only to error, move_leader_to, down_for and freeze_for; set at least one of them"
        )
    if fault.after_append and fault.error is not None and fault.api_key not in _WITH_LATE_ERRORS:
        raise ValueError(
            f"{fault.api_key.name} appends nothing, so after_append can't be combined with an error"
        )
    if fault.drop_before and (fault.drop_after_append or fault.after_append):
        raise ValueError(
            "drop_before does not serve the request, so drop_after_append and after_append can't be set"
        )
    for name, lowest in _LOWEST.items():
        value = getattr(fault, name)
        if value is not None and value < lowest:
            raise ValueError(f"{name}={value} must be {lowest} or more")


def _any_of(wishes: Sequence[object]) -> bool:
    """Return True if one of these values is not None; 0 counts as set."""
    return any(wish is not None for wish in wishes)


_WITH_LATE_ERRORS = (
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
)
"""The APIs for which `error` can be combined with `after_append`; their handlers call `RequestContext.late_error`."""

_LOWEST = {
    "count": 1,
    "skip": 0,
    "delay": 0,
    "throttle_ms": 0,
    "truncate": 0,
    "trickle": 1,
    "trickle_pause": 0,
    "down_for": 0,
    "freeze_for": 0,
}


# Faults for verification


@dataclass(slots=True)
class _VerificationFault:
    error: ErrorCode
    topic: str | None
    partition: int | None
    left: int

    def concerns(self, target: TopicPartition) -> bool:
        return self.topic in (None, target.topic) and self.partition in (None, target.partition)


class VerificationFaults:
    """Scripted faults for verification, in the order in which they were added."""

    def __init__(self) -> None:
        self._faults: list[_VerificationFault] = []

    def add(self, error: ErrorCode, topic: str | None, partition: int | None, count: int) -> None:
        """Make the next `count` verifications of this topic and partition fail; None means any."""
        self._faults.append(_VerificationFault(error, topic, partition, count))

    def take(self, targets: Sequence[TopicPartition]) -> ErrorCode | None:
        """Return the error that the leader gets instead of an answer, or None if it can ask."""
        for fault in self._faults:
            if fault.left and any(fault.concerns(target) for target in targets):
                fault.left -= 1
                return fault.error
        return None
