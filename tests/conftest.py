"""Event loops, the unit of time and the check for tasks left behind, for all tests.

Async tests run once on asyncio's loop and once on uvloop, if that is installed; tests against a real Kafka or a
real schema registry run on one of them. AIOPRODUCER_TEST_SLOWNESS=5 makes every time-out of the tests five
times as long, AIOPRODUCER_TEST_TASKS=eager makes all tasks eager."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aioproducer.testing import ApacheKafka

try:
    import uvloop
except ImportError:
    uvloop = None

# Modules that contain assertions, although they are not tests.
pytest.register_assert_rewrite(
    "tests.support.apache_load",
    "tests.support.apache_log",
    "tests.support.offset_cells",
    "tests.support.raw_transactions",
    "tests.support.read_back",
    "tests.support.spark_stage",
    "tests.support.transaction_cells",
    "tests.support.transaction_stage",
)

MS = 0.001 * float(os.environ.get("AIOPRODUCER_TEST_SLOWNESS", "1"))
"""One millisecond in seconds, longer on a slow machine: `await asyncio.wait_for(event.wait(), 500 * MS)`."""


@asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError if the block takes longer than `seconds`, not counting stalls of the machine.

    The limit is counted in turns of the loop, 10 ms apart: a stall of any length counts as one turn. Use it for
    "must not hang", where asyncio.timeout() could fail although the code is correct."""
    loop = asyncio.get_running_loop()
    turns = max(1, round(seconds / 0.01))

    def turn() -> None:
        nonlocal turns, timer
        turns -= 1
        if turns > 0:
            timer = loop.call_later(0.01, turn)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(0.01, turn)
        try:
            yield
        finally:
            timer.cancel()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the simulated loop, where time passes only while nothing else is left to do.

    Deadlines, pauses and measured times are then exact, and a stall of the machine does not change them. The
    test must not need TLS, real sockets or processes."""
    from aioproducer.testing.simulation.loop import simulate

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        simulate(lambda: test(*args, **kwargs), seed=1, time_limit=3600.0)

    return run


EAGER = os.environ.get("AIOPRODUCER_TEST_TASKS") == "eager"

_topics = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    # A shell makes background jobs ignore Ctrl-C, and processes started by tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interval := os.environ.get("AIOPRODUCER_TEST_SWITCH_INTERVAL"):
        sys.setswitchinterval(float(interval))
    # No single example has a time limit, since the machine may stall while it runs.
    hypothesis.settings.register_profile(
        "no deadline", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("no deadline")
    # If the package is installed, pytest has already loaded the plugin.
    if not config.pluginmanager.hasplugin("aioproducer"):
        from aioproducer.testing import plugin

        config.pluginmanager.register(plugin, "aioproducer")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from visiting the collected tests: they are half a million objects, which each full
    collection would visit without freeing any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


LONGEST = [
    # the slow ones, of `make test-all`
    "tests/spark/test_crashes.py",
    "tests/spark/test_oldest.py",
    "tests/project/test_spark_benchmark.py",
    "tests/spark/test_apache_spark.py",
    "tests/spark/test_apache_use.py",
    "tests/project/test_pipeline.py",
    "tests/end_to_end/test_apache_transform.py",
    "tests/campaigns/test_chaos.py",
    "tests/end_to_end/test_endurance.py",
    # the others, of `make test`
    "tests/spark/test_sink.py",
    "tests/end_to_end/test_apache_producer.py",
    "tests/testing/embedded/test_conformance.py",
    "tests/cli/test_produce.py",
    "tests/end_to_end/test_process_faults.py",
    "tests/testing/embedded/test_transaction_clients.py",
    "tests/transactions/test_transform_loop.py",
    "tests/testing/embedded/test_clients.py",
    "tests/end_to_end/test_anyio.py",
]
"""The files that take longest. They begin first, so that no worker waits long for the last one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors, since tests spend a third of their time waiting."""
    return (os.cpu_count() or 1) + 1


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop}
    if uvloop is not None:
        loops["uvloop"] = uvloop.new_event_loop
        if any(item.get_closest_marker(name) is not None for name in ("apache", "schema_registry")):
            del loops["asyncio"]
    # uvloop 0.22 passes its task factory an argument that eager_task_factory accepts only since Python 3.14.
    return {"asyncio": _eager_loop} if EAGER else loops


def _eager_loop() -> asyncio.AbstractEventLoop:
    """A loop whose tasks run immediately until their first wait (Python 3.12)."""
    loop = asyncio.SelectorEventLoop()
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


@pytest.fixture(scope="session")
def apache_kafka_39(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """A real broker of the previous release line, shared like `apache_kafka`: each test needs its own topics."""
    from aioproducer.testing import ApacheKafka
    from tests.support.apache_clusters import SHARED, running

    with running(ApacheKafka(version="3.9.2", jvm_args=SHARED), request=request) as kafka:
        yield kafka


@pytest.fixture(scope="session", autouse=True)
def spark_scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Spark write its temporary files to a directory that pytest deletes after some runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_SPARK_SCRATCH", str(tmp_path_factory.mktemp("spark")))
        yield


@pytest.fixture(scope="session", autouse=True)
def invalid_names() -> Iterator[None]:
    """Make lookups of names in .invalid fail at once (RFC 6761, section 6.4): some resolvers take seconds."""

    def answer(original: Callable[..., Any]) -> Callable[..., Any]:
        async def getaddrinfo(loop: Any, host: Any, port: Any, **keywords: Any) -> Any:
            if str(host).endswith(".invalid"):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return await original(loop, host, port, **keywords)

        return getaddrinfo

    with pytest.MonkeyPatch.context() as patch:
        for loops in (asyncio.BaseEventLoop, *([] if uvloop is None else [uvloop.Loop])):
            patch.setattr(loops, "getaddrinfo", answer(loops.getaddrinfo))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests, since it takes seconds to start."""
    from tests.support.spark_stage import session

    running = session()
    yield running
    running.stop()


@pytest.fixture(
    params=[
        pytest.param("apache_kafka", id="4.3"),
        pytest.param("apache_kafka_39", id="3.9", marks=pytest.mark.slow),
    ],
    scope="module",
)
def each_kafka(request: pytest.FixtureRequest) -> ApacheKafka:
    """Run the test on each of the two brokers; `make test` uses only the newer one."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses; the topic is not created."""
    name = request.function.__name__.removeprefix("test_")[:60]
    return f"{name}-{next(_topics)}"


@pytest.fixture(autouse=True)
def no_task_is_left_behind(request: pytest.FixtureRequest) -> None:
    """Fail an async test if tasks that it or its fixtures started are still running at its end."""
    if request.node.get_closest_marker("asyncio") is not None:
        # Requested first, so it is torn down last: after the fixtures that end the tasks they started.
        request.getfixturevalue("_no_task_is_left_behind")


@pytest_asyncio.fixture
async def _no_task_is_left_behind() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, (
        f"tasks left behind: {sorted(task.get_name() + ' ' + repr(task.get_coro()) for task in left)}"
    )
