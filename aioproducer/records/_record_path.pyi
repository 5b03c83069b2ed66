"""Types of the compiled record path; _record_path.pyx has the documentation."""

from array import array
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from aioproducer.errors import KafkaError
from aioproducer.types import Headers, TopicPartition

if TYPE_CHECKING:
    from aioproducer.observe.tracing import SendSpan, SendTracer
    from aioproducer.records.batch import ProducerBatch
    from aioproducer.records.idempotence import PartitionSequence
    from aioproducer.records.interceptors import Interceptors
    from aioproducer.records.pending_record import PendingRecord
    from aioproducer.records.serializers import Serializer

HEADER_SIZE: int
LARGE_RECORD: int

Data = bytes | bytearray | memoryview

def whole_number(value: object) -> int | None: ...
def murmur2(key: Data) -> int: ...
def spare_memory() -> int: ...

class BufferMemory:
    total: int
    available: int
    waiters: int
    def __init__(self, total: int) -> None: ...
    def take(self, size: int) -> bool: ...
    def give(self, size: int) -> None: ...

class BatchState(Enum):
    OPEN = "open"
    CLOSED = "closed"
    IN_FLIGHT = "in flight"
    DONE = "done"

class Batch:
    queue: PartitionQueue
    record_count: int
    state: BatchState
    base_timestamp: int
    max_timestamp: int
    last_timestamp: int
    reserved: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    error: BaseException | None
    record_errors: dict[int, BaseException] | None
    unretrieved: int
    is_due: bool
    def __init__(self, queue: PartitionQueue, loop: AbstractEventLoop, capacity: int, limit: int) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def records(self) -> memoryview: ...
    def freeze(self) -> int: ...
    @property
    def is_whole(self) -> bool: ...
    def complete_records(self) -> None: ...
    def take_reserved(self) -> int: ...
    def try_append(
        self, value: Data | None, key: Data | None, timestamp_ms: int | None, headers: Headers | None
    ) -> bool: ...
    def delivery(self, index: int = 0, timestamp: int | None = None) -> Delivery: ...
    def another(self, delivery: Delivery) -> Delivery: ...
    def count_unretrieved(self, count: int) -> None: ...
    def mark_retrieved(self, index: int) -> None: ...
    @property
    def unretrieved_errors(self) -> list[BaseException]: ...
    parts: list[tuple[int, Batch]] | None
    def complete(self, base_offset: int, log_append_time: int, log_start_offset: int) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    ended_early: set[int] | None
    withdrawn: list[int]
    left_out: list[int]
    def end_record(self, delivery: Delivery, error: BaseException, withdraw: bool) -> None: ...
    def end_records(self, first: int, end: int, error: BaseException, withdraw: bool) -> int: ...
    def have_ended(self, first: int, end: int) -> bool: ...
    def take_records(self, parent: Batch, first: int, end: int, errors: dict[int, BaseException]) -> None: ...
    def split_into(self, parts: Sequence[tuple[int, Batch]]) -> None: ...
    def leave_out_withdrawn(self) -> None: ...
    def original_index(self, index: int) -> int: ...

class RecordMetadata:
    topic: str
    partition: int
    timestamp: int
    timestamp_type: int
    log_start_offset: int
    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        timestamp: int = -1,
        timestamp_type: int = 0,
        log_start_offset: int = -1,
    ) -> None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def topic_partition(self) -> TopicPartition: ...

class Delivery:
    _asyncio_future_blocking: bool
    @property
    def _cancel_message(self) -> Any: ...
    @property
    def _loop(self) -> AbstractEventLoop: ...
    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def batch(self) -> ProducerBatch: ...
    def get_loop(self) -> AbstractEventLoop: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self, msg: Any = None) -> bool: ...
    def result(self) -> RecordMetadata: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(
        self, callback: Callable[[Delivery], object], *, context: Context | None = None
    ) -> None: ...
    def remove_done_callback(self, callback: Callable[[Delivery], object]) -> int: ...
    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...
    def __iter__(self) -> Iterator[Any]: ...

class PartitionQueue:
    topic: str
    partition: int
    batches: deque[ProducerBatch]
    tail: ProducerBatch | None
    in_flight: list[ProducerBatch]
    retry_at: float
    sequence: PartitionSequence | None
    size_hint: int
    node_id: int
    def __init__(self, topic: str, partition: int) -> None: ...

class Topic:
    name: str
    queues: list[PartitionQueue]
    next_partition: Callable[[int], int]
    sticky_partition: int
    sticky_bytes: int
    def __init__(self, name: str) -> None: ...

class _Compressor(Protocol):
    @property
    def turn_is_full(self) -> bool: ...

# The part of the accumulator that the compiled code uses; tests/project/test_layering.py compares it with the source.
class Buffer(Protocol):
    @property
    def topics(self) -> dict[str, Topic]: ...
    @property
    def compressor(self) -> _Compressor: ...
    def open_batch(self, queue: PartitionQueue, size: int) -> Batch | None: ...
    def hurry(self, batch: ProducerBatch) -> None: ...

class Gate:
    is_open: bool
    def __init__(self) -> None: ...

TAKES_VALUE: int
TAKES_CONTEXT: int
TAKES_TOPIC: int

class SerializationContext:
    @property
    def topic(self) -> str: ...
    @property
    def field(self) -> str: ...
    headers: list[tuple[str, bytes | None]]
    def __init__(
        self, topic: str, field: str, headers: Headers | None = None, metadata: Any = None
    ) -> None: ...
    @property
    def cluster_id(self) -> str | None: ...

class Waiting:
    @property
    def awaitable(self) -> Any: ...
    def __init__(self, awaitable: Any) -> None: ...

class UserSerializer:
    @property
    def serializer(self) -> Any: ...
    @property
    def field(self) -> str: ...
    @property
    def takes(self) -> int: ...
    def __init__(self, serializer: Any, field: str, function: Any, takes: int) -> None: ...
    def failed(self, topic: str, error: Exception) -> Exception: ...
    def settle(self, topic: str, result: Any) -> Any: ...
    def checked(self, topic: str, result: Any) -> Any: ...

class Serialization:
    @property
    def topic(self) -> str: ...
    @property
    def value(self) -> Any: ...
    @property
    def key(self) -> Any: ...
    @property
    def headers(self) -> Headers | None: ...
    @property
    def waiting(self) -> Waiting | None: ...
    @property
    def waits_for(self) -> UserSerializer: ...
    def run(self) -> bool: ...
    def resume(self, result: Any) -> None: ...
    def failed(self, error: Exception) -> Exception: ...

class RecordPath:
    _gate: Gate
    def _bind(
        self,
        loop: AbstractEventLoop,
        accumulator: Buffer,
        memory: BufferMemory,
        batch_size: int,
        max_request_size: int,
        is_compiled: bool,
    ) -> None: ...
    def _run_user_code(
        self,
        of_value: UserSerializer | None,
        of_key: UserSerializer | None,
        interceptors: Interceptors | None,
        metadata: Any,
    ) -> None: ...
    def _unbind(self) -> None: ...
    def _check_usable(self) -> None: ...
    def _check_place(self) -> None: ...
    # The slow parts of a send, which may wait or run user code. Producer defines or overrides some of them.
    _tracer: SendTracer | None
    def _check_may_append(self) -> None: ...
    def _send_traced(
        self,
        span: SendSpan,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        timestamp_ms: int | None,
        timeout: float | None,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
    ) -> Delivery | PendingRecord: ...
    async def _send_traced_slowly(
        self, span: SendSpan, pending: PendingRecord, timeout: float | None
    ) -> Delivery: ...
    def _try_send_traced_slowly(
        self, span: SendSpan, pending: PendingRecord, timeout: float | None
    ) -> Delivery: ...
    def _count_rejected(self, topic: object, error: BaseException) -> None: ...
    def _serializer_for(self, topic: object, serializer: Any, field: str) -> UserSerializer: ...
    async def _send_slowly(self, pending: PendingRecord, timeout: float | None) -> Delivery: ...
    def _try_send_slowly(self, pending: PendingRecord, timeout: float | None) -> Delivery: ...
    def _serialization(
        self,
        of_value: UserSerializer | None,
        of_key: UserSerializer | None,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
    ) -> Serialization: ...
    # Documented in producer.py.
    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> Delivery: ...
    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> RecordMetadata: ...
    def try_send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> Delivery: ...
    def _append(
        self,
        topic: Topic,
        value: Any,
        key: Any,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
        is_first_waiter: bool,
    ) -> Delivery | None: ...
    async def _give_way(self) -> None: ...
    def _append_rows(
        self, topic: Topic, rows: Rows, refusals: list[KafkaError | None] | None, is_first_waiter: bool
    ) -> int: ...

class Span:
    batch: Batch
    first: int
    count: int
    def __init__(self, batch: Batch, first: int, count: int = 0) -> None: ...

class Rows:
    count: int
    next: int
    errors: dict[int, BaseException]
    spans: list[Span]
    has_waited_in_vain: bool
    def __init__(self, values: Any, keys: Any, headers: Any, timestamps: Any, partitions: Any) -> None: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def largest_partition(self) -> int: ...
    def refuse(self, error: BaseException) -> None: ...
    def refuse_rest(self, error: BaseException) -> None: ...
    def record(self) -> tuple[Any, Any, int | None, int | None, Any]: ...
    def mark_sent(self, delivery: Delivery) -> None: ...
    def place(self, row: int) -> int: ...
    def timestamp(self, row: int) -> int: ...
    def rows_of(self, partition: int) -> memoryview: ...

class Slices:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> bytes | None: ...
    def slice(self, start: int, length: int) -> Slices: ...

def split_lines(
    data: bytes, delimiter: bytes | None = None, null: bytes | None = None
) -> tuple[Slices | None, Slices]: ...
def murmur2_partitions(keys: Any, partitions: int) -> array[int]: ...

ALL_APPENDED: int
OTHERS_TURN: int
NO_ROOM: int
