"""Types of the compiled request path; see _request_path.pyx for the documentation."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

_Thing = TypeVar("_Thing")

class _HasPartition(Protocol):
    @property
    def partition(self) -> int: ...

class _Sealed(Protocol):
    @property
    def queue(self) -> _HasPartition: ...
    @property
    def segments(self) -> tuple[bytes | memoryview, ...]: ...

def batch_header(
    payload: bytes | memoryview,
    attributes: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    first_sequence: int,
) -> bytes: ...
def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[str, int, Sequence[_Sealed]]],
) -> tuple[list[bytes | memoryview], dict[bytes, dict[int, int]]]: ...
def read_success(
    version: int, frame: bytes, correlation_id: int, places: dict[bytes, dict[int, int]]
) -> tuple[list[tuple[int, int, int, int]], int] | None: ...

class Buckets:
    count: int
    total: float
    maximum: float
    def add(self, value: float, times: int = 1) -> None: ...
    def filled(self) -> tuple[tuple[float, int], ...]: ...
    def quantile(self, q: float) -> float: ...

def untrack(thing: object) -> None: ...
def untracked(things: tuple[_Thing, ...]) -> tuple[_Thing, ...]: ...
