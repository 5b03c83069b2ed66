"""The coroutine that `send` and `send_and_wait` return behaves like a native one, which some tests run as well."""

from __future__ import annotations

import asyncio
import collections.abc
import gc
import inspect
import weakref
from contextlib import suppress

import pytest

from aioproducer.records import _record_path
from aioproducer.records._record_path import Delivery, SendCall
from tests.support.compiled_path import OpensBatches, Path, bound


class SlowPath(Path):
    """A path whose calls wait for `may_go_on` if they cannot append a record immediately."""

    async def _send_slowly(self, pending, timeout):
        await self.may_go_on
        return self._append(self.accumulator_of.topics["orders"], b"late", None, 0, None, None, True)


@pytest.fixture
async def accumulator() -> OpensBatches:
    return OpensBatches(asyncio.get_running_loop())


@pytest.fixture
def path(accumulator) -> Path:
    return bound(accumulator)


@pytest.fixture
async def slow(accumulator) -> SlowPath:
    path = SlowPath()
    path._bind(accumulator.loop, accumulator, accumulator.memory, 1 << 16, 1 << 20, True)
    path.accumulator_of = accumulator
    path.may_go_on = asyncio.get_running_loop().create_future()
    return path


class Value:
    """A value that can be referenced weakly."""


async def native(path):
    """Do the same as `send`, for comparison."""
    return await path.send("orders", b"v")


BOTH = {
    "send": lambda path: path.send("orders", b"v"),
    "native": native,
}


@pytest.fixture(params=BOTH)
def call(request, path):
    return BOTH[request.param](path)


async def test_a_call_is_a_coroutine_to_asyncio_and_to_the_standard_library(path):
    for name in ("send", "send_and_wait"):
        call = getattr(path, name)("orders", b"v")

        assert type(call) is SendCall
        assert asyncio.iscoroutine(call)
        assert isinstance(call, collections.abc.Coroutine)
        assert inspect.isawaitable(call)
        assert inspect.iscoroutinefunction(getattr(type(path), name))
        assert (call.__name__, call.__qualname__) == (name, f"Producer.{name}")
        assert repr(call) == f"<coroutine Producer.{name}>"
        call.close()


@pytest.mark.parametrize("name", ["send", "send_and_wait"])
def test_a_call_takes_the_parameters_that_are_documented(name):
    assert inspect.signature(getattr(_record_path._Calls, name)) == inspect.signature(
        getattr(_record_path.RecordPath, name)
    )


def test_a_call_cannot_be_created_by_itself():
    with pytest.raises(TypeError, match=r"Producer\.send\(\) creates this coroutine"):
        SendCall()


async def test_nothing_happens_before_a_call_is_awaited(path, accumulator):
    call = path.send("orders", b"v")
    assert accumulator.tail is None

    await call

    assert accumulator.tail.record_count == 1


@pytest.mark.parametrize("name", ["send", "send_and_wait"])
async def test_a_call_that_is_never_awaited_is_reported_and_sends_nothing(path, accumulator, name):
    with pytest.warns(RuntimeWarning, match=rf"coroutine 'Producer\.{name}' was never awaited"):
        getattr(path, name)("orders", b"v")

    assert accumulator.tail is None


async def test_a_call_takes_its_arguments_by_position_and_by_name(path, accumulator):
    await path.send("orders", b"v", b"k", 0, 7, [("a", None)])
    await path.send(topic="orders", value=b"v", key=b"k", partition=0, timestamp_ms=7, headers=[("a", None)])

    first, second = accumulator.tail.record_count, accumulator.tail
    assert (first, second.max_timestamp) == (2, 7)
    for arguments, names in (((), {}), (("orders", *[None] * 6), {}), (("orders",), {"wrong": 1})):
        with pytest.raises(TypeError, match=r"send\(\)"):
            path.send(*arguments, **names)


async def test_it_runs_in_each_function_of_asyncio_that_takes_a_coroutine(path):
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        deliveries = [await group.create_task(path.send("orders", b"v"))]
    deliveries += await asyncio.gather(path.send("orders", b"v"), path.send("orders", b"v"))
    deliveries.append(await asyncio.wait_for(path.send("orders", b"v"), 5))
    deliveries.append(await asyncio.shield(path.send("orders", b"v")))
    deliveries.append(
        await asyncio.to_thread(
            lambda: asyncio.run_coroutine_threadsafe(path.send("orders", b"v"), loop).result(5)
        )
    )

    assert {type(delivery) for delivery in deliveries} == {Delivery}


async def test_an_awaited_call_cannot_be_awaited_again(call):
    await call

    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await call
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        call.throw(ValueError())
    call.close()


async def test_a_new_call_takes_only_none(call):
    with pytest.raises(TypeError, match="can't send non-None value to a just-started coroutine"):
        call.send(1)

    assert isinstance(await call, Delivery)


async def test_an_error_thrown_into_a_new_call_leaves_it_and_sends_nothing(call, accumulator):
    with pytest.raises(ValueError, match="thrown"):
        call.throw(ValueError("thrown"))

    assert accumulator.tail is None
    with pytest.raises(RuntimeError):
        await call


@pytest.mark.parametrize(
    ("thrown", "expected"),
    [
        ((ValueError,), "ValueError()"),
        ((ValueError, "text"), "ValueError('text')"),
        ((ValueError, ValueError("text")), "ValueError('text')"),
        ((ValueError("text"),), "ValueError('text')"),
    ],
)
async def test_an_error_may_be_thrown_as_a_class_or_an_object(path, thrown, expected):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # its text is compared below
        path.send("orders", b"v").throw(*thrown)

    assert repr(caught.value) == expected


async def test_a_closed_call_is_not_reported(call, accumulator):
    call.close()

    with pytest.raises(RuntimeError):
        await call
    assert accumulator.tail is None


async def test_a_call_that_runs_cannot_be_resumed(accumulator):
    errors = []

    class Reentrant(Path):
        async def _send_slowly(self, pending, timeout):
            for resume in (lambda: call.send(None), lambda: call.throw(KeyError()), call.close):
                with pytest.raises(ValueError, match="coroutine already executing") as caught:
                    resume()
                errors.append(caught.value)
            assert call.cr_running
            return await super()._send_slowly()

    path = Reentrant()
    path._bind(accumulator.loop, accumulator, accumulator.memory, 1 << 16, 1 << 20, True)
    call = path.send("unknown", b"v")

    with pytest.raises(NotImplementedError):
        await call
    assert len(errors) == 3


async def test_a_call_that_has_to_wait_waits_for_another_coroutine(slow):
    call = slow.send("unknown", b"v")
    assert (call.cr_suspended, call.cr_await, call.cr_frame, call.cr_code) == (False, None, None, None)
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    assert (call.cr_running, call.cr_suspended) == (False, True)
    assert inspect.iscoroutine(call.cr_await) or asyncio.iscoroutine(call.cr_await)
    assert "Producer.send()" in repr(task)

    slow.may_go_on.set_result(None)

    assert isinstance(await task, Delivery)
    assert not call.cr_suspended


async def test_a_call_that_waits_can_be_cancelled_and_closed(slow, accumulator):
    task = asyncio.create_task(slow.send("unknown", b"v"))
    await asyncio.sleep(0)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task

    slow.may_go_on = asyncio.get_running_loop().create_future()
    call = slow.send("unknown", b"v")
    assert call.send(None) is slow.may_go_on
    call.close()
    with pytest.raises(RuntimeError):
        call.send(None)
    assert accumulator.tail is None


async def test_a_call_may_handle_an_error_and_wait_again(accumulator):
    class Stubborn(Path):
        async def _send_slowly(self, pending, timeout):
            for _ in range(3):
                with suppress(ValueError):
                    await asyncio.sleep(60)
            raise NotImplementedError

    path = Stubborn()
    path._bind(accumulator.loop, accumulator, accumulator.memory, 1 << 16, 1 << 20, True)
    call = path.send("unknown", b"v")
    waiting = [call.send(None)]
    waiting += [call.throw(ValueError()) for _ in range(2)]

    assert len({id(future) for future in waiting}) == 3
    with pytest.raises(NotImplementedError):
        call.throw(ValueError())
    with pytest.raises(RuntimeError):
        call.send(None)


async def test_send_and_wait_yields_its_delivery_until_that_has_a_result(path, accumulator):
    call = path.send_and_wait("orders", b"v")
    delivery = call.send(None)
    assert (type(delivery), delivery._asyncio_future_blocking) == (Delivery, True)
    assert call.cr_await is delivery
    assert call.send(None) is delivery

    accumulator.tail.succeed(5, -1, -1)

    with pytest.raises(StopIteration) as ended:
        next(call)
    assert ended.value.value.offset == 5


async def test_closing_send_and_wait_leaves_the_record_in_its_batch(path, accumulator):
    call = path.send_and_wait("orders", b"v")
    delivery = call.send(None)

    call.close()

    assert not delivery.cancelled()
    assert accumulator.tail.record_count == 1
    accumulator.tail.succeed(0, -1, -1)


@pytest.mark.parametrize("name", ["send", "send_and_wait"])
async def test_a_call_that_raises_keeps_nothing_alive(path, name):
    gc.disable()
    try:
        value = Value()
        gone = weakref.ref(value)
        with pytest.raises(Exception, match="must be bytes"):
            await getattr(path, name)("orders", value)
        del value
        assert gone() is None
    finally:
        gc.enable()


async def test_a_cycle_through_a_call_that_is_never_awaited_is_collected(path):
    value = Value()
    gone = weakref.ref(value)
    value.call = path.send("orders", value)
    del value

    with pytest.warns(RuntimeWarning, match="never awaited"):
        gc.collect()

    assert gone() is None
