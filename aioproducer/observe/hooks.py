"""Hooks: their methods are called for connections, requests, batches and transactions, never for individual records.

Hooks run in the producer's event loop, in the middle of its work. A hook that raises is switched off, so that it cannot
disrupt sending."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aioproducer.observe.client_log import ClientLog
from aioproducer.protocol.compression import Codec
from aioproducer.types import ENDS_OF_THE_PROGRAM, CloseReport, Node, Outcome, qualified_name

__all__ = [
    "BatchEvent",
    "CloseEvent",
    "ConnectEvent",
    "DataLossEvent",
    "DisconnectEvent",
    "Event",
    "RejectedEvent",
    "RequestEvent",
    "RetryEvent",
    "StartEvent",
    "ThrottleEvent",
    "TransactionEvent",
    "add_default",
    "remove_default",
]

if TYPE_CHECKING:
    from aioproducer.records.batch import ProducerBatch


class StartEvent(NamedTuple):
    """`on_start`: start() has succeeded."""

    client_id: str
    cluster_id: str | None
    """The cluster id; None after `start(wait=False)`, or if the brokers do not report one."""
    seconds: float


class CloseEvent(NamedTuple):
    """`on_close`: the producer is closed."""

    client_id: str
    report: CloseReport
    seconds: float


class ConnectEvent(NamedTuple):
    """`on_connect`: an attempt to connect, including authentication, has ended."""

    client_id: str
    node: Node
    seconds: float
    error: BaseException | None
    """The reason why the attempt failed; None if the connection is ready."""


class DisconnectEvent(NamedTuple):
    """`on_disconnect`: a connection that was ready is closed."""

    client_id: str
    node: Node
    error: BaseException | None
    """The error; None for an orderly close of a connection that was idle or whose broker has left the cluster."""


class RequestEvent(NamedTuple):
    """`on_request`: a request was answered, or its connection was closed."""

    client_id: str
    node: Node
    api: str
    """The name of the request, such as PRODUCE."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """The time from writing the request to receiving its response."""
    error: BaseException | None
    """The reason why there is no response; None if there is a response, even one with error codes."""


class ThrottleEvent(NamedTuple):
    """`on_throttle`: a broker accepts no requests for a while, because of a quota."""

    client_id: str
    node: Node
    seconds: float


class BatchEvent(NamedTuple):
    """`on_batch`: all records in a batch have their results."""

    client_id: str
    topic: str
    partition: int
    records: int
    wire_bytes: int
    """The size of the batch as sent, after compression."""
    compression: str
    """The codec: none, gzip, snappy, lz4 or zstd."""
    attempts: int
    seconds: float
    """The time from opening the batch to its result."""
    base_offset: int | None
    """The offset of the first record; None if the batch failed, if acks=0, or if the broker already had the batch and
    did not return its offset."""
    outcome: Outcome | None
    """Whether the records in a failed batch may be in the log; None if the batch did not fail."""
    error: BaseException | None


class RetryEvent(NamedTuple):
    """`on_retry`: a batch will be sent again after a back-off. A batch is not reported if it goes to a new leader at
    once, if it is split, or if it waits only for an earlier batch or for a few milliseconds."""

    client_id: str
    topic: str
    partition: int
    records: int
    attempts: int
    """The number of attempts so far."""
    pause: float
    """The minimum time in seconds before the batch is sent again."""
    error: BaseException | None
    """The reason for the retry."""


class RejectedEvent(NamedTuple):
    """`on_rejected`: records were not accepted, because `send` raised an error or `send_many` rejected rows."""

    client_id: str
    topic: object
    """The topic as the caller passed it, which may not be a str."""
    records: int
    error: BaseException


class DataLossEvent(NamedTuple):
    """`on_data_loss`: the brokers have lost, or may have lost, acknowledged records of a topic."""

    client_id: str
    topic: str
    partitions: dict[int, int]
    """The last acknowledged offset of each affected partition, by partition number."""
    is_certain: bool
    reason: str
    """How the producer noticed the loss, for example that a topic was re-created with a new id."""


class TransactionEvent(NamedTuple):
    """`on_transaction`: a transactional call has ended."""

    client_id: str
    transactional_id: str
    call: str
    """The call: begin, initialize, send_offsets, commit, abort or fence."""
    seconds: float
    error: BaseException | None


Event = (
    StartEvent
    | CloseEvent
    | ConnectEvent
    | DisconnectEvent
    | RequestEvent
    | ThrottleEvent
    | BatchEvent
    | RetryEvent
    | RejectedEvent
    | DataLossEvent
    | TransactionEvent
)
"""Each event has the `client_id` of its producer. Events are tuples, because tuples are the fastest to create."""

EVENTS = (
    "on_start",
    "on_close",
    "on_connect",
    "on_disconnect",
    "on_request",
    "on_throttle",
    "on_batch",
    "on_retry",
    "on_rejected",
    "on_data_loss",
    "on_transaction",
)
"""The methods that a hook may have."""

_CODECS = {codec: codec.name.lower() for codec in Codec}
_defaults: list[object] = []


def add_default(hook: object) -> None:
    """Add a hook to every producer created from now on, ahead of its own hooks. For instrumentation libraries."""
    if hook not in _defaults:
        _defaults.append(hook)


def remove_default(hook: object) -> None:
    """Undo `add_default`. Producers that already exist keep the hook."""
    if hook in _defaults:
        _defaults.remove(hook)


class Hooks:
    """All hooks of one producer. Each event has a list of (hook, method), which is usually empty.

    The callers build an event only if its list is not empty.
    """

    __slots__ = ("_log", "client_id", *EVENTS)

    on_start: list[Any]
    on_close: list[Any]
    on_connect: list[Any]
    on_disconnect: list[Any]
    on_request: list[Any]
    on_throttle: list[Any]
    on_batch: list[Any]
    on_retry: list[Any]
    on_rejected: list[Any]
    on_data_loss: list[Any]
    on_transaction: list[Any]

    def __init__(self, hooks: Sequence[object], client_id: str, log: ClientLog | None = None) -> None:
        self.client_id = client_id
        self._log = log or ClientLog(__name__, client_id)
        for event in EVENTS:
            found = ((hook, getattr(hook, event, None)) for hook in (*_defaults, *hooks))
            setattr(self, event, [(hook, method) for hook, method in found if method is not None])

    def tell(self, listeners: list[Any], event: Event) -> None:
        """Call the hooks' methods for one event, such as `on_batch`."""
        # Switching off a hook replaces the list, and leaves this one unchanged.
        for hook, method in listeners:
            try:
                returned = method(event)
            except ENDS_OF_THE_PROGRAM:
                raise
            except BaseException:
                self._log.warning(
                    "the hook %s raised an exception and has been switched off",
                    qualified_name(method),
                    exc_info=True,
                )
                self._switch_off(hook)
                continue
            if returned is not None and inspect.iscoroutine(returned):
                returned.close()
                self._log.warning(
                    "the hook %s is async and has been switched off; hooks can't be awaited",
                    qualified_name(method),
                )
                self._switch_off(hook)

    def connected(self, node: Node, seconds: float, error: BaseException | None) -> None:
        """Report an attempt to connect."""
        if self.on_connect:
            self.tell(self.on_connect, ConnectEvent(self.client_id, node, seconds, error))

    def disconnected(self, node: Node, error: BaseException | None) -> None:
        """Report a connection that was closed."""
        if self.on_disconnect:
            self.tell(self.on_disconnect, DisconnectEvent(self.client_id, node, error))

    def batch_ended(
        self,
        batch: ProducerBatch,
        records: int,
        now: float,
        base_offset: int,
        error: BaseException | None = None,
    ) -> None:
        """Report a batch whose records all have a result. `base_offset` is -1 if it is not known."""
        queue = batch.queue
        event = BatchEvent(
            self.client_id,
            queue.topic,
            queue.partition,
            records,
            batch.wire_size,
            _CODECS[batch.codec],
            batch.attempts,
            now - batch.created,
            base_offset if base_offset >= 0 else None,
            None if error is None else getattr(error, "outcome", None),
            error,
        )
        self.tell(self.on_batch, event)

    def _switch_off(self, hook: object) -> None:
        for event in EVENTS:
            setattr(self, event, [entry for entry in getattr(self, event) if entry[0] is not hook])


NO_HOOKS = Hooks((), "")
