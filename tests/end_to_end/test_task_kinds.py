"""The loop's debug mode, and unusual kinds of tasks: the producer does not depend on them."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings

import pytest

from aioproducer.concurrency.tasks import new_task
from tests.conftest import MS
from tests.support.producing import producing, results, values, within


@pytest.mark.promise(
    "Public API", "no task of the package starts eagerly, and asyncio's debug mode reports nothing"
)
async def test_in_debug_mode_records_are_sent_without_a_warning(caplog):
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    # Seconds; this long, because shared machines sometimes pause for a while.
    loop.slow_callback_duration = 30.0
    settings = {"linger_ms": 1, "request_timeout_ms": 3_000_000 * MS}
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.WARNING, "asyncio"):
        warnings.simplefilter("always")
        async with producing(2, transactional_id="tx", topics={"t": 2}, **settings) as (cluster, producer):
            async with producer.transaction():
                deliveries = [await producer.send("t", b"%d" % number) for number in range(100)]
                await producer.flush()
            found = await results(deliveries)
            await producer.begin_transaction()
            await within(2, producer.send_and_wait("t", b"aborted"))
            await producer.abort_transaction()

            assert len({(one.partition, one.offset) for one in found}) == 100
            assert len(values(cluster)) == 101
        gc.collect()

    assert not caplog.records
    assert not warned


@pytest.mark.promise(
    "Public API", "no task of the package starts eagerly, and asyncio's debug mode reports nothing"
)
@pytest.mark.parametrize("name", [None, "a name"])
async def test_a_task_of_ours_never_starts_eagerly_whatever_the_loops_factory_does(name):
    loop = asyncio.get_running_loop()
    begun = []

    async def begin() -> None:
        begun.append(asyncio.current_task())

    def at_once(loop: asyncio.AbstractEventLoop, coroutine: object, **settings: object) -> None:
        raise AssertionError("an eager factory would run the coroutine here")

    loop.set_task_factory(at_once)
    try:
        task = new_task(loop, begin(), name)
    finally:
        loop.set_task_factory(None)

    assert begun == []
    await task
    assert begun == [task]
    assert name is None or task.get_name() == name
