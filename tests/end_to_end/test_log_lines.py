"""The log lines of an outage: one scenario for each row of the table in docs/operations.md."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import logging
import re
import ssl
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from opentelemetry.trace import NoOpTracer

from aioproducer import Producer, blocking
from aioproducer.blocking import loop_thread
from aioproducer.errors import BootstrapError, KafkaError, MetadataTimeoutError
from aioproducer.observe.otel import _SendTracer
from aioproducer.observe.tracing import set_tracer
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import ProduceResponse
from aioproducer.testing import EmbeddedCluster, Security
from tests.conftest import MS, in_virtual_time
from tests.support.certificates import authority_pem, server_context
from tests.support.error_table.stage import altered
from tests.support.log_lines import log_lines
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    ONE_BATCH_PER_RECORD,
    PRODUCE,
    producing,
    quick_producer,
)

ROOT = Path(__file__).parents[2]
SLOW = {
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1000,
    "delivery_timeout_ms": 120_000,
    "request_timeout_ms": 30_000,
    "max_block_ms": 60_000,
}

Scenario = Callable[[], Coroutine[Any, Any, None]]


class Played(NamedTuple):
    play: Scenario
    times: int
    in_real_time: bool
    """True if the scenario needs a blocked loop, a thread or TLS."""


SCENARIOS: dict[str, Played] = {}


class Row(NamedTuple):
    event: str
    level: str
    line: str


def table() -> list[Row]:
    """Return the rows of the table in the docs: the event, the level, and an example of the line."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    text = page.split("## Log lines")[1].split("\n## ")[0]
    code = r"(?:`` (.+?) ``|`([^`]+)`)"
    rows = re.findall(rf"^\| ([^|`]+) \| (INFO|WARNING|ERROR) \| {code}", text, re.MULTILINE)
    return [Row(event, level, long or short) for event, level, long, short in rows]


def shape(line: str) -> str:
    """Return the line without its numbers and directories."""
    return re.sub(r"\d[\d.]*(e-\d+)?", "#", re.sub(r"/\S+/", "/", line))


def scenario(event: str, times: int = 1, *, in_real_time: bool = False) -> Callable[[Scenario], Scenario]:
    """Register the scenario for an event's row, whose line appears this many times."""

    def keep(play: Scenario) -> Scenario:
        SCENARIOS[event] = Played(play, times, in_real_time)
        return play

    return keep


def test_each_row_has_its_scenario():
    assert {row.event for row in table()} == set(SCENARIOS)


A_BUG = "a bug of aioproducer, reported with its traceback"
TOO_LATE = "an event loop that stays blocked, which would outlive the test"
OF_LOOPS = "a line of a TransformLoop: docs/transform.md, tests/transactions/test_transform_loop.py"
UNLISTED = {
    "close() failed; the remaining records": A_BUG,
    "%s ended unexpectedly; the producer is closing": A_BUG,
    "partitions could not be added to the transaction": A_BUG,
    "%s: a response could not be handled": A_BUG,
    "%s: re-authentication failed": A_BUG,
    "a metadata response could not be handled": A_BUG,
    "%s: the attempt to connect failed": A_BUG,
    "the metrics could not be pushed": A_BUG,
    "the last metrics could not be pushed": A_BUG,
    "%r did not close within %g s": TOO_LATE,
    "%r could not be closed": TOO_LATE,
    "a batch of a TransformLoop was aborted": OF_LOOPS,
    "the commit of a TransformLoop's batch is being repeated": OF_LOOPS,
    "the abort of a TransformLoop's batch is being repeated": OF_LOOPS,
    "a TransformLoop is waiting for the committed offsets": OF_LOOPS,
}
"""The reasons why log calls have no row, keyed by the beginning of their text."""
ROOMS_WITHOUT_ROWS = {
    "spark": "Spark's driver and tasks, with the log of docs/spark.md",
    "testing": "the test clusters",
}
LEVELS = {"info", "warning", "error", "exception", "critical", "log"}


def log_calls(source: str) -> list[str]:
    """Return the texts that may be logged at INFO or above; `?` for a text that is not a literal."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
        ):
            continue
        logger = ast.unparse(node.func.value).partition("(")[0].rpartition(".")[2]
        if logger.lstrip("_") not in ("log", "logger"):
            continue
        text = node.args[node.func.attr == "log"]
        is_literal = isinstance(text, ast.Constant) and isinstance(text.value, str)
        found.append(text.value if is_literal else "?")
    return found


def is_line_of(text: str, line: str) -> bool:
    """Return True if a log call with this text can write the line."""
    parts = re.split(r"%(?:\.\d)?[a-z]", text)
    return re.fullmatch(".*".join(re.escape(part.replace("%%", "%")) for part in parts), line) is not None


def test_log_calls_are_found_in_the_source():
    source = """
log.info("a %s", 1)
self._log.log(level, "b %.3g s" "c", 1)
logger.exception(f"{d}")
self._log.debug("e")
config.log(__name__).error("g")
self.info("f")
"""
    assert log_calls(source) == ["a %s", "b %.3g sc", "?", "g"]
    assert is_line_of("b %.3g s, 50%% (%r)", "b 0.1 s, 50% (x)")
    assert not is_line_of("b %.3g s", "b 0.1 m")


@pytest.mark.promise("Observability", "each line of the log at INFO or above is in the docs")
def test_each_log_call_has_a_row():
    package = ROOT / "aioproducer"
    texts = {
        text: path.relative_to(package)
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] not in ROOMS_WITHOUT_ROWS and path.name != "client_log.py"
        for text in log_calls(path.read_text(encoding="utf-8"))
    }
    lines = [row.line for row in table()]

    missing = {
        text: str(path) for text, path in texts.items() if not any(is_line_of(text, line) for line in lines)
    }

    unexplained = [text for text in missing if not text.startswith(tuple(UNLISTED))]
    assert unexplained == [], "add a row to the table in docs/operations.md, and a scenario here"
    assert all(any(text.startswith(start) for text in missing) for start in UNLISTED), "a stale exception"


@pytest.mark.promise(
    "Observability", "each event of the log's table has its line, at its level and as often as stated"
)
@pytest.mark.parametrize("row", table(), ids=lambda row: row.event)
def test_the_line_of_each_row_is_logged_at_its_level_and_as_often_as_expected(row, caplog):
    caplog.set_level(logging.DEBUG)
    play, times, in_real_time = SCENARIOS[row.event]

    if in_real_time:
        asyncio.run(play())
    else:
        in_virtual_time(play)()

    lines = log_lines(caplog, logging.INFO)
    levels = [
        record.levelname
        for record in caplog.records
        # the text as it was logged: formatted again, it could show a producer in a later state
        if shape(record.message.removeprefix("[producer aioproducer] ")) == shape(row.line)
    ]
    assert levels == [row.level] * times, "\n".join(lines)
    of_producer = [
        entry for entry in caplog.records if not entry.name.startswith(("aioproducer.testing", "asyncio"))
    ]
    assert all(entry.getMessage().startswith("[producer aioproducer] ") for entry in of_producer)


async def refused_for(seconds: float) -> None:
    """Reject each Produce request for a while, then accept one."""
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=1000)
        delivery = await producer.send("orders", b"v")
        await asyncio.sleep(seconds)
        cluster.faults.clear()
        await delivery


@scenario("a batch is sent again")
async def play_retry() -> None:
    await refused_for(5)


@scenario("the error persists", 3)
async def play_retries() -> None:
    await refused_for(35)


@scenario("batches are accepted again")
async def play_recovery() -> None:
    await refused_for(5)


@scenario("connected")
async def play_connected() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (_, producer):
        await producer.send_and_wait("orders", b"v")


@scenario("a broker cannot be reached, or a connection is lost")
async def play_lost() -> None:
    async with producing(brokers=1, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.crash_broker(0, down_for=5)
        await asyncio.sleep(8)


@scenario("the broker stays unreachable", 5)
async def play_unreachable() -> None:
    async with producing(brokers=1, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.crash_broker(0, down_for=60)
        await (await producer.send("orders", b"v"))


@scenario("connected again")
async def play_again() -> None:
    await play_lost()


@scenario("start() is waiting", 2)
async def play_start() -> None:
    async with EmbeddedCluster(1) as cluster:
        cluster.freeze_broker(0)
        timeouts = {"socket_connection_setup_timeout_ms": 3000, "max_block_ms": 25_000}
        with pytest.raises(BootstrapError):
            await quick_producer(cluster, **{**SLOW, **timeouts}).start()


@scenario("the producer returns to the bootstrap servers")
async def play_rebootstrap() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.crash_broker(0, down_for=20)
        delivery = await producer.send("orders", b"v")
        await delivery


@scenario("a leader moved")
async def play_moved() -> None:
    async with producing(brokers=2, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.move_leader("orders", 0, 1 - cluster.leader("orders", 0))
        await producer.send_and_wait("orders", b"v")


@scenario("a partition has no leader")
async def play_no_leader() -> None:
    async with producing(brokers=2, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.set_isr("orders", 0, [cluster.leader("orders", 0)])
        cluster.crash_broker(cluster.leader("orders", 0), down_for=20)
        await (await producer.send("orders", b"v"))


@scenario("the partition stays without a leader", 2)
async def play_no_leader_for_long() -> None:
    async with producing(brokers=2, topics={"orders": 1}, **SLOW) as (cluster, producer):
        await producer.send_and_wait("orders", b"v")
        cluster.set_isr("orders", 0, [cluster.leader("orders", 0)])
        cluster.crash_broker(cluster.leader("orders", 0), down_for=28)
        await (await producer.send("orders", b"v"))


@scenario("a broker throttles", 2)
async def play_throttled() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, throttle_ms=2000, count=7)
        for _ in range(7):
            await producer.send_and_wait("orders", b"v")


@scenario("the buffer is full", 2)
async def play_full() -> None:
    async with producing(topics={"orders": 1}, **{**SLOW, **FOUR_RECORDS_FILL_IT}) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold_before=hold)
        for _ in range(4):
            await producer.send("orders", b"v" * LARGE)
        waiting = asyncio.create_task(producer.send("orders", b"v" * LARGE))
        await asyncio.sleep(13)
        hold.set()
        await (await waiting)
        await asyncio.sleep(2)


@scenario("the buffer has room again")
async def play_room() -> None:
    await play_full()


@scenario("the event loop was blocked", in_real_time=True)
async def play_blocked() -> None:
    async with producing(topics={"orders": 1}, linger_ms=5) as (_, producer):
        for _ in range(2):
            delivery = await producer.send("orders", b"v")
            await asyncio.sleep(0)
            time.sleep(1.3)  # noqa: ASYNC251  # imitates blocking code
            await delivery


@scenario("records failed, and no caller retrieved the result")
async def play_unseen() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        await producer.send("orders", b"v")
        await asyncio.sleep(3)


async def refused_topics() -> None:
    """Reject the batches of a hundred topics three times each."""
    async with producing(topics={f"t{number}": 1 for number in range(100)}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.NOT_ENOUGH_REPLICAS, count=300)
        deliveries = [await producer.send(f"t{number}", b"v") for number in range(100)]
        await asyncio.gather(*deliveries, return_exceptions=True)


@scenario("batches of many topics are sent again")
async def play_many_topics() -> None:
    await refused_topics()


@scenario("a batch is too large for a broker")
async def play_split() -> None:
    async with producing(topics={"orders": 1}, **{**SLOW, "linger_ms": 10}) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.MESSAGE_TOO_LARGE)
        await asyncio.gather(*[await producer.send("orders", b"v") for _ in range(2)])


@scenario("a broker rejects some records in a batch")
async def play_named_records() -> None:
    def name_one(answer: ProduceResponse) -> None:
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    partition.record_errors = [ProduceResponse.BatchIndexAndErrorMessage(batch_index=1)]

    with altered(PRODUCE, name_one):
        async with producing(topics={"orders": 1}, **{**SLOW, "linger_ms": 10}) as (cluster, producer):
            cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
            deliveries = [await producer.send("orders", b"v") for _ in range(2)]
            await asyncio.gather(*deliveries, return_exceptions=True)


@scenario("metadata cannot be refreshed")
async def play_metadata() -> None:
    async with producing(topics={"orders": 1}, **{**SLOW, "max_block_ms": 40_000}) as (cluster, producer):
        cluster.faults.add(PRODUCE, throttle_ms=45_000)
        await producer.send_and_wait("orders", b"v")
        with pytest.raises(MetadataTimeoutError):
            await producer.partitions_for("another")
        await asyncio.sleep(10)


@scenario("another cluster answers")
async def play_cluster_id() -> None:
    async with EmbeddedCluster(1) as cluster:
        cluster.cluster_id = "7Tm0dQ"
        async with quick_producer(cluster, **SLOW) as producer:
            cluster.cluster_id = "uB1x9g"
            await producer.partitions_for("another")


@scenario("a broker throttles for a very long time")
async def play_long_throttle() -> None:
    async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
        cluster.faults.add(PRODUCE, throttle_ms=61_000)
        await producer.send_and_wait("orders", b"v")
        await asyncio.sleep(62)


async def lose_two_records(cluster: EmbeddedCluster, producer: Producer) -> None:
    """Acknowledge four records, then elect an unclean leader that lacks two of them."""
    for _ in range(4):
        await producer.send_and_wait("orders", b"v")
    cluster.partition("orders", 0).high_watermark = 2
    cluster.move_leader("orders", 0, 1 - cluster.leader("orders", 0))
    producer._metadata.request_update()
    await asyncio.sleep(1)


@scenario("a broker lost records")
async def play_loss() -> None:
    settings = {**SLOW, **ONE_BATCH_PER_RECORD}
    async with producing(brokers=2, topics={"orders": 1}, **settings) as (cluster, producer):
        await lose_two_records(cluster, producer)
        await producer.send_and_wait("orders", b"v")


@scenario("a broker may have lost records")
async def play_possible_loss() -> None:
    settings = {**SLOW, **ONE_BATCH_PER_RECORD}
    async with producing(brokers=2, topics={"orders": 1}, **settings) as (cluster, producer):
        await lose_two_records(cluster, producer)
        async with quick_producer(cluster, **settings) as other:
            for _ in range(5):
                await other.send_and_wait("orders", b"v")
        await producer.send_and_wait("orders", b"v")


@scenario("a block ends before all records are acknowledged")
async def play_end_of_block() -> None:
    async with EmbeddedCluster(1, topics={"orders": 1}) as cluster:
        hold = asyncio.Event()
        async with quick_producer(cluster, **SLOW) as producer:
            cluster.faults.add(PRODUCE, hold_before=hold)
            await producer.send("orders", b"v")
        hold.set()


@scenario("a producer is not closed")
async def play_unclosed() -> None:
    async with producing(topics={"orders": 1}, **{**SLOW, "linger_ms": 1000}) as (_, producer):
        await producer.send("orders", b"v")
        for task in producer._tasks:  # as asyncio.run() does at its end
            task.cancel()
        await asyncio.sleep(0.1)


async def with_a_blocking_producer(use: Callable[[EmbeddedCluster, blocking.Producer], None]) -> None:
    """Call `use` in a thread, with a started blocking producer."""
    async with EmbeddedCluster(1, topics={"orders": 1}) as cluster:
        producer = blocking.Producer(cluster.bootstrap_servers, linger_ms=0)
        await asyncio.to_thread(producer.start)
        try:
            await asyncio.to_thread(use, cluster, producer)
        finally:
            await asyncio.to_thread(producer.close, 0)


@scenario("a blocking producer is not closed", in_real_time=True)
async def play_blocking_unclosed() -> None:
    await with_a_blocking_producer(lambda *_: loop_thread.close_all())


@scenario("closing a blocking producer loses records", in_real_time=True)
async def play_blocking_losses() -> None:
    def use(cluster: EmbeddedCluster, producer: blocking.Producer) -> None:
        producer.send_and_wait("orders", b"v")
        cluster.freeze_broker(0)
        producer.send("orders", b"v")
        with patch.object(loop_thread, "EXIT_SECONDS", 100 * MS):
            loop_thread.close_all()

    await with_a_blocking_producer(use)


@scenario("a callback raises", in_real_time=True)
async def play_callback() -> None:
    def use(_: EmbeddedCluster, producer: blocking.Producer) -> None:
        producer.send("orders", b"v").add_done_callback(lambda _: 1 / 0)
        producer.flush()

    await with_a_blocking_producer(use)


@scenario("a transaction is open for too long")
async def play_expiry() -> None:
    async with producing(topics={"orders": 1}, transactional_id="tx", **SLOW) as (_, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"v")
        await asyncio.sleep(60)
        await producer.abort_transaction()


@scenario("the abort fails")
async def play_failed_expiry() -> None:
    async with producing(topics={"orders": 1}, transactional_id="tx", **SLOW) as (cluster, producer):
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"v")
        cluster.faults.add(ApiKey.END_TXN, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10_000)
        await asyncio.sleep(150)


@scenario("a fenced producer's block ends")
async def play_fenced() -> None:
    async with producing(topics={"orders": 1}, transactional_id="tx", **SLOW) as (cluster, producer):
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait("orders", b"v")
                async with quick_producer(cluster, transactional_id="tx", **SLOW):
                    raise ZeroDivisionError


@scenario("a block cannot abort its transaction")
async def play_failed_abort() -> None:
    async with producing(topics={"orders": 1}, transactional_id="tx", **SLOW) as (cluster, producer):
        with contextlib.suppress(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait("orders", b"v")
                cluster.faults.add(ApiKey.END_TXN, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, count=10_000)
                raise ZeroDivisionError


class Broken:
    """An interceptor and a hook with a bug."""

    def on_send(self, _: Any) -> Any:
        raise ValueError

    def on_batch(self, _: Any) -> None:
        raise ValueError


class Forgetful:
    """An interceptor that forgets to return the record."""

    def on_send(self, _: Any) -> None:
        return


class Async:
    """An interceptor and a hook that are async, which is not supported."""

    async def on_acknowledgement(self, _: Any) -> None: ...

    async def on_batch(self, _: Any) -> None: ...


async def send_one(**settings: Any) -> None:
    async with producing(topics={"orders": 1}, **settings) as (_, producer):
        await producer.send_and_wait("orders", b"v")


@scenario("a setting overrides another setting's default")
async def play_settings() -> None:
    await send_one(acks=0)


@scenario("an interceptor raises")
async def play_broken_interceptor() -> None:
    await send_one(interceptors=[Broken()])


@scenario("an interceptor returns no record")
async def play_forgetful_interceptor() -> None:
    await send_one(interceptors=[Forgetful()])


@scenario("an interceptor is async")
async def play_async_interceptor() -> None:
    await send_one(interceptors=[Async()])


@scenario("a hook raises")
async def play_broken_hook() -> None:
    await send_one(hooks=[Broken()])


@scenario("a hook is async")
async def play_async_hook() -> None:
    await send_one(hooks=[Async()])


@scenario("a metric raises")
async def play_metric() -> None:
    async with EmbeddedCluster(1, collects_metrics=True) as cluster:
        cluster.telemetry.subscribe([""], interval_ms=100)
        async with quick_producer(cluster) as producer:
            producer.register_metric("com.example.open_orders", lambda: 1 / 0)
            await asyncio.sleep(1)


@scenario("tracing raises")
async def play_tracing() -> None:
    class Tracer(NoOpTracer):
        def start_span(self, *_: Any, **__: Any) -> Any:
            raise ValueError

    set_tracer(lambda config: _SendTracer(config, Tracer(), capture_key=False))
    try:
        await send_one()
    finally:
        set_tracer(None)


@scenario("a batch cannot be compressed")
async def play_compression() -> None:
    def fail(_: object) -> bytes:
        raise MemoryError("no room for the codec")

    async with producing(topics={"orders": 1}, compression_type="zstd") as (_, producer):
        producer._compressor._compress = fail
        await producer.send_and_wait("orders", b"v")


@scenario("no thread can be started", in_real_time=True)
async def play_threads() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with producing(topics={"orders": 1}, compression_type="gzip", compression_level=9) as (_, producer):
        producer._compressor.executor.submit = fail
        await producer.send_and_wait("orders", b"v" * 500_000)


@scenario("TLS without checks", in_real_time=True)
async def play_unchecked() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with EmbeddedCluster(1, topics={"orders": 1}, security=Security(tls=server_context())) as cluster:
        async with quick_producer(cluster, security_protocol="SSL", ssl_context=context) as producer:
            await producer.send_and_wait("orders", b"v")


@scenario("certificates cannot be read again", in_real_time=True)
async def play_certificates() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ca.pem"
        path.write_text(authority_pem())
        security = Security(tls=server_context())
        async with EmbeddedCluster(1, topics={"orders": 1}, security=security) as cluster:
            settings = {"security_protocol": "SSL", "ssl_truststore_location": str(path)}
            async with quick_producer(cluster, **settings) as producer:
                path.write_text("half of it")
                await producer.send_and_wait("orders", b"v")  # not on the connection for metadata


@scenario("credentials cannot be renewed", 2)
async def play_credentials() -> None:
    calls: list[int] = []

    def credentials() -> tuple[str, str]:
        calls.append(1)
        if len(calls) in (3, 4):
            raise LookupError("the vault is sealed")
        return "alice", "secret"

    credentials.__qualname__ = "read_vault"
    security = Security(mechanisms=["PLAIN"], users={"alice": "secret"}, session_lifetime=60.0)
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_without_tls": True,
        "sasl_credentials": credentials,
    }
    async with producing(topics={"orders": 1}, cluster={"security": security}, **SLOW, **settings) as (
        _,
        producer,
    ):
        await producer.send_and_wait("orders", b"v")
        await asyncio.sleep(59)


def test_a_leader_is_not_missing_while_no_broker_is_known_or_no_record_waits(caplog):
    @in_virtual_time
    async def unreachable() -> None:
        async with producing(topics={"orders": 1}, **SLOW) as (cluster, producer):
            await producer.send_and_wait("orders", b"v")
            cluster.crash_broker(0, down_for=60)
            await asyncio.sleep(30)
            delivery = await producer.send("orders", b"v")
            await delivery

    @in_virtual_time
    async def idle() -> None:
        async with producing(brokers=2, topics={"orders": 1}, **SLOW) as (cluster, producer):
            await producer.send_and_wait("orders", b"v")
            cluster.set_isr("orders", 0, [cluster.leader("orders", 0)])
            cluster.crash_broker(cluster.leader("orders", 0), down_for=20)
            await asyncio.sleep(30)

    caplog.set_level(logging.INFO)
    unreachable()
    idle()

    lines = log_lines(caplog, logging.INFO)
    assert [line for line in lines if "returning to the bootstrap servers" in line]
    assert [line for line in lines if line.startswith("no leader")] == []


def test_records_of_a_transaction_that_the_user_aborts_are_not_an_error(caplog):
    @in_virtual_time
    async def play() -> None:
        async with producing(topics={"orders": 1}, transactional_id="tx", linger_ms=1000) as (_, producer):
            await producer.begin_transaction()
            for _ in range(7):
                await producer.send("orders", b"v")
            await producer.abort_transaction()
            await asyncio.sleep(3)
            assert producer.metrics().records_unretrieved == 0

    play()

    assert log_lines(caplog, logging.WARNING) == []


@pytest.mark.parametrize("timeout", [None, 0])
@pytest.mark.parametrize("linger_ms", [0, 1000])
def test_records_of_an_open_transaction_that_close_aborts_are_not_an_error(caplog, timeout, linger_ms):
    @in_virtual_time
    async def play() -> None:
        async with producing(topics={"orders": 1}, transactional_id="tx", linger_ms=linger_ms) as (
            _,
            producer,
        ):
            await producer.begin_transaction()
            for _ in range(7):
                await producer.send("orders", b"v")
            report = await producer.close(timeout)
            assert (report.delivered + report.failed + report.unknown, report.unretrieved) == (7, {})

    play()

    assert log_lines(caplog, logging.WARNING) == []


def test_records_of_a_commit_that_close_gives_up_are_an_error(caplog):
    @in_virtual_time
    async def play() -> None:
        async with producing(topics={"orders": 1}, transactional_id="tx", **SLOW) as (cluster, producer):
            await producer.begin_transaction()
            hold = asyncio.Event()
            cluster.faults.add(PRODUCE, hold_before=hold)
            await producer.send("orders", b"v")
            committing = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(1)
            await producer.close(timeout=0)
            with pytest.raises(KafkaError):
                await committing
            hold.set()

    play()

    assert [line.split(",")[0] for line in log_lines(caplog, logging.ERROR)] == [
        "1 record for topic orders was not delivered"
    ]


def test_rejected_batches_of_many_topics_write_only_a_few_lines(caplog):
    in_virtual_time(refused_topics)()

    warnings = log_lines(caplog, logging.WARNING)
    assert len([line for line in warnings if "will be sent again in" in line]) == 20
    assert len([line for line in warnings if line.startswith("batches for more topics")]) == 1


def test_a_failed_connection_has_only_one_line(caplog):
    @in_virtual_time
    async def play() -> None:
        async with EmbeddedCluster(1) as cluster:
            cluster.crash_broker(0)
            with pytest.raises(BootstrapError):
                await quick_producer(cluster, **{**SLOW, "max_block_ms": 5000}).start()

    play()

    assert len(log_lines(caplog, logging.WARNING)) == 1
