"""The environment of a cell of the error table: a producer, a cluster with scripted answers, and virtual time.

A scene returns what it has seen as a row of the table. `consulted` records the rules that the producer used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from aioproducer import Producer
from aioproducer.errors import KafkaError
from aioproducer.protocol import outcomes
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.outcomes import Condition, Failure, Moment, Row, Rule
from aioproducer.protocol.schema import Message
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.faults import Fault
from aioproducer.testing.embedded.handlers import HANDLERS
from aioproducer.testing.embedded.request_context import RequestContext, SeenRequest
from aioproducer.testing.simulation.loop import SimulatedLoop, simulate
from aioproducer.testing.simulation.network import SimulatedNetwork

SETTINGS: dict[str, Any] = {
    "linger_ms": 0,
    # Long, so that a test can see whether the producer waited for a back-off.
    "retry_backoff_ms": 1000,
    "retry_backoff_max_ms": 1000,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 100,
    "request_timeout_ms": 2000,
    "delivery_timeout_ms": 9000,
    "max_block_ms": 7000,
}
ALL = 100_000
"""The count of a fault that never ends."""
OTHER = None
"""Represents all codes for which an API has no row."""


class Cell(NamedTuple):
    """One decision of the table: the event and the conditions to which it applies."""

    api: ApiKey | None
    what: int | Failure | Moment | None
    """An error code or OTHER; or a failure or moment, which have no API."""
    when: frozenset[Condition]

    @property
    def name(self) -> str:
        what = self.what.name if isinstance(self.what, Failure | Moment) else "OTHER"
        if isinstance(self.what, int):
            what = ErrorCode(self.what).name
        when = "+".join(sorted(condition.name for condition in self.when))
        return "-".join(part for part in (self.api.name if self.api is not None else "", what, when) if part)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The entry of the table that contains the cell."""
        if isinstance(self.what, Failure | Moment):
            return outcomes.TABLE[self.what]
        assert self.api is not None
        return outcomes.UNKNOWN_CODES[self.api] if self.what is None else outcomes.TABLE[self.api, self.what]

    @property
    def row(self) -> Row:
        return next(rule.row for rule in self.rules if rule.when == self.when)


def cells() -> list[Cell]:
    """The cells of the whole table."""
    found: list[Cell] = []
    for key, rules in outcomes.TABLE.items():
        api, what = key if isinstance(key, tuple) else (None, key)
        found += [Cell(api, what, rule.when) for rule in rules]
    for api, rules in outcomes.UNKNOWN_CODES.items():
        found += [Cell(api, OTHER, rule.when) for rule in rules]
    return found


class Stage:
    """The objects that a scene may use."""

    def __init__(self, cluster: EmbeddedCluster, producer: Producer, loop: SimulatedLoop) -> None:
        self.cluster = cluster
        self.producer = producer
        self.loop = loop
        self.faults = cluster.faults
        self.network = loop.network

    def refuse(self, api: ApiKey, code: int, **more: Any) -> Fault:
        """Answer the next requests with an error code, which may be unknown."""
        fault = self.faults.add(api, error=ErrorCode.UNKNOWN_SERVER_ERROR, **more)
        fault.error = code  # type: ignore[assignment]  # future brokers have others
        return fault

    def requests(self, api: ApiKey) -> list[SeenRequest]:
        return self.cluster.requests_of(api)

    @property
    def port(self) -> int:
        return self.cluster.broker(0).port


@asynccontextmanager
async def staged(
    *,
    brokers: int = 1,
    version: int = 2,
    starts: bool = True,
    cluster: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """A cluster with the topic t, and a producer; `version` is the transaction version."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    async with EmbeddedCluster(
        brokers,
        topics={"t": 2},
        transaction_version=version,
        # The cluster uses the real clock, because records take their timestamps from it.
        random=Random(1),
        **(cluster or {}),
    ) as embedded:
        producer = Producer(embedded.bootstrap_servers, **{**SETTINGS, **settings})
        producer._random.seed("walk")
        try:
            if starts:
                await producer.start()
            yield Stage(embedded, producer, loop)
        finally:
            embedded.faults.clear()
            await producer.close(timeout=0)


def play(main: Callable[[], Coroutine[Any, Any, Any]], **network: Any) -> Any:
    """Run a scene and return its result."""
    return simulate(main, seed=1, network=SimulatedNetwork(**network), time_limit=1000.0)


@contextmanager
def altered(api: ApiKey, change: Callable[[Any], Message | None]) -> Iterator[None]:
    """Let a function change or replace a broker's answers."""
    original = HANDLERS[api]

    async def handler(context: RequestContext, request: Any) -> Message | None:
        answer = await original(context, request)
        return answer if answer is None else change(answer) or answer

    with patch.dict(HANDLERS, {api: handler}):
        yield


Consulted = list[tuple[tuple[Rule, ...], frozenset[Condition]]]


@contextmanager
def consulted() -> Iterator[Consulted]:
    """Record the rules that the producer used, with the conditions of the one that applied."""
    found: Consulted = []
    first = outcomes._first

    def noting(rules: tuple[Rule, ...], conditions: outcomes.Conditions) -> Row:
        holds = set(conditions() if callable(conditions) else conditions)
        found.append((rules, next(rule.when for rule in rules if rule.when <= holds)))
        return first(rules, holds)

    with patch.object(outcomes, "_first", noting):
        yield found


async def error_of(call: Awaitable[Any]) -> KafkaError | None:
    """The error of a call, or None."""
    try:
        await call
    except KafkaError as error:
        return error
    return None


async def until(condition: Callable[[], object]) -> None:
    """Let virtual time pass until the condition holds."""
    while not condition():  # noqa: ASYNC110  # the condition sets no event
        await asyncio.sleep(0.001)


def check_flags(error: BaseException, *flags: str) -> None:
    """Assert that the error is one of ours and has exactly these flags."""
    assert isinstance(error, KafkaError), repr(error)
    names = ("retriable", "requires_abort", "requires_reinit", "fatal")
    assert [name for name in names if getattr(error, name)] == sorted(flags, key=names.index), repr(error)
