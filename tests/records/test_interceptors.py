"""`interceptors=[...]`: called before anything else happens to a record, once with its result, and skipped if
they raise."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aioproducer import ProducerRecord, RecordMetadata
from aioproducer.errors import (
    BufferFullError,
    DeliveryError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidRecordError,
    InvalidTopicError,
    RecordTooLargeError,
    SendManyError,
    SerializationError,
    UnknownPartitionError,
)
from aioproducer.observe.client_log import ClientLog
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.records.interceptors import Interceptors
from tests.conftest import MS, in_virtual_time
from tests.support.producing import (
    FOUR_RECORDS_FILL_IT,
    LARGE,
    PRODUCE,
    error_of,
    producing,
    results,
    until,
    values,
    within,
)

LOG = ClientLog("aioproducer.records.interceptors", "orders")


class Recorder:
    """An interceptor that records all calls and changes nothing."""

    def __init__(self):
        self.records = []
        self.results = []

    def on_send(self, record):
        self.records.append(record)
        return record

    def on_acknowledgement(self, result):
        self.results.append(result)


class Suffix:
    """An interceptor that appends to each value and has no on_acknowledgement."""

    def __init__(self, suffix):
        self.suffix = suffix

    def on_send(self, record):
        return record._replace(value=record.value + self.suffix)


class Broken:
    def on_send(self, record):
        raise RuntimeError("on_send is broken")

    def on_acknowledgement(self, result):
        raise RuntimeError("on_acknowledgement is broken")


RECORD = ProducerRecord("t", b"v")


def test_without_interceptors_a_record_is_not_changed():
    interceptors = Interceptors([], LOG)
    interceptors.on_acknowledgement(RuntimeError(), RECORD)

    assert interceptors.on_send(RECORD) is RECORD


def test_an_interceptor_that_fails_leaves_the_record_as_the_previous_ones_returned_it(caplog):
    last = Recorder()
    interceptors = Interceptors([Suffix(b"1"), Broken(), Suffix(b"2"), last], LOG)

    assert interceptors.on_send(RECORD) == ProducerRecord("t", b"v12")
    assert last.records == [ProducerRecord("t", b"v12")]
    assert "Broken.on_send raised an exception and was skipped for this record" in caplog.text


def test_a_result_reaches_each_interceptor_even_if_others_fail(caplog):
    first, last = Recorder(), Recorder()
    error = DeliveryError("refused")

    Interceptors([first, Broken(), Suffix(b"has no on_acknowledgement"), last], LOG).on_acknowledgement(
        error, RECORD
    )

    assert first.results == last.results == [error]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Broken.on_acknowledgement raised an exception and was skipped for this record" in caplog.text


class Cancelled:
    """An interceptor that raises CancelledError, as `result()` of a cancelled future does."""

    def on_send(self, record):
        raise asyncio.CancelledError

    def on_acknowledgement(self, result):
        raise asyncio.CancelledError


async def test_a_cancellation_that_an_interceptor_raises_itself_only_skips_it(caplog):
    async with producing(interceptors=[Cancelled()]) as (cluster, producer):
        assert (await producer.send_and_wait("t", b"v")).offset == 0
        await until(lambda: "on_acknowledgement raised" in caplog.text)

    assert values(cluster) == [b"v"]
    assert "Cancelled.on_send raised an exception and was skipped for this record" in caplog.text


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_that_ends_the_program_leaves_an_interceptor(ending):
    class Ends:
        def on_send(self, record):
            raise ending

        def on_acknowledgement(self, result):
            raise ending

    interceptors = Interceptors([Ends()], LOG)
    with pytest.raises(ending):
        interceptors.on_send(RECORD)
    with pytest.raises(ending):
        interceptors.on_acknowledgement(RuntimeError(), RECORD)


async def test_interceptors_see_the_record_as_passed_to_send_and_its_metadata():
    recorder = Recorder()

    async with producing(interceptors=[recorder]) as (_, producer):
        metadata = await producer.send_and_wait("t", b"v", b"k", 0, 17, [("h", b"x")])
        await until(lambda: recorder.results)

    assert recorder.records == [ProducerRecord("t", b"v", b"k", 0, 17, [("h", b"x")])]
    assert recorder.results == [metadata]


async def test_on_send_may_replace_the_record_in_order():
    last = Recorder()

    async with producing(interceptors=[Suffix(b"1"), Suffix(b"2"), last]) as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        assert values(cluster) == [b"v12"]

    assert last.records[0].value == b"v12"


@pytest.mark.promise(
    "Coming from other clients",
    "interceptors run before everything else in `send` and once per record at its end; one that raises is "
    "skipped",
)
async def test_on_send_comes_before_metadata_serializers_and_partitioner():
    calls = []

    class Redirect:
        def on_send(self, record):
            calls.append("on_send")
            return record._replace(topic="u", value=record.value.upper())

    def serializer(value):
        calls.append("serializer")
        return value.encode()

    def partitioner(key, every, available):
        calls.append("partitioner")
        return 0

    async with producing(
        topics={"u": 1},
        interceptors=[Redirect()],
        value_serializer=serializer,
        partitioner=partitioner,
        allow_auto_create_topics=False,
    ) as (cluster, producer):
        await producer.send_and_wait("does-not-exist", "text")
        assert values(cluster, "u") == [b"TEXT"]

    assert calls == ["on_send", "serializer", "partitioner"]


@pytest.mark.promise(
    "Coming from other clients",
    "interceptors run before everything else in `send` and once per record at its end; one that raises is "
    "skipped",
)
@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"topic": "not a topic!"}, InvalidTopicError),
        ({"topic": "t", "partition": 7}, UnknownPartitionError),
        ({"topic": "t", "value": b"x" * 2000}, RecordTooLargeError),
        ({"topic": "t", "value": "not bytes"}, SerializationError),
    ],
)
@in_virtual_time
async def test_records_that_fail_before_the_append_are_acknowledged_with_their_error(record, error):
    recorder = Recorder()

    def serializer(value):
        return value if isinstance(value, bytes) else value.no_such_method()

    async with producing(
        interceptors=[recorder],
        max_request_size=1024,
        max_block_ms=100 * MS * 1000,
        value_serializer=serializer,
    ) as (_, producer):
        with pytest.raises(error):
            await producer.send(**record)

        assert [type(result) for result in recorder.results] == [error]


@pytest.mark.parametrize(
    "serializer", [None, lambda value: value if isinstance(value, bytes) else value.no_such_method()]
)
async def test_records_for_a_known_topic_are_also_acknowledged_once(serializer):
    keeps, hook = Keeps(), RejectedTopics()

    async with producing(
        interceptors=[keeps], hooks=[hook], max_request_size=1024, value_serializer=serializer
    ) as (_, producer):
        metadata = [await producer.send_and_wait("t", b"0")]
        metadata.append(await producer.send_and_wait("t", b"1"))
        metadata.append(await (await producer.send("t", b"2")))
        metadata.append(await producer.try_send("t", b"3"))
        await until(lambda: len(keeps.ends) == 4)
        for value, error in ((b"x" * 2000, RecordTooLargeError), (4, InvalidRecordError)):
            with pytest.raises(error):
                await producer.send("t", value)
            with pytest.raises(error):
                producer.try_send("t", value)

    assert [result for result, _ in keeps.ends[:4]] == metadata
    assert [record.context for _, record in keeps.ends[:4]] == [
        f"context of b'{number}'" for number in range(4)
    ]
    failed = InvalidRecordError if serializer is None else SerializationError
    expected = [RecordTooLargeError, RecordTooLargeError, failed, failed]
    assert [type(result) for result, _ in keeps.ends[4:]] == expected
    assert [record.context for _, record in keeps.ends[6:]] == ["context of 4"] * 2
    assert hook.topics == ["t"] * 4


class RejectedTopics:
    """A hook that records the topics of rejected records."""

    def __init__(self):
        self.topics = []

    def on_rejected(self, event):
        self.topics.append(event.topic)


async def test_try_send_also_calls_interceptors():
    recorder = Recorder()

    async with producing(interceptors=[recorder]) as (_, producer):
        with pytest.raises(BufferFullError):
            producer.try_send("t", b"not known yet")
        await producer.partitions_for("t")
        metadata = await within(2, producer.try_send("t", b"v"))
        await until(lambda: len(recorder.results) == 2)

    assert isinstance(recorder.results[0], BufferFullError)
    assert recorder.results[1] == metadata


async def test_failed_deliveries_are_acknowledged_with_their_error():
    recorder = Recorder()

    async with producing(interceptors=[recorder]) as (cluster, producer):
        cluster.faults.add(PRODUCE, error=ErrorCode.INVALID_RECORD)
        error = await error_of(producer.send_and_wait("t", b"v"))
        await until(lambda: recorder.results)

    assert isinstance(error, DeliveryError)
    assert [str(result) for result in recorder.results] == [str(error)]


async def test_each_record_is_acknowledged_once_and_in_order():
    recorder = Recorder()

    async with producing(interceptors=[recorder], linger_ms=5) as (_, producer):
        found = await results([await producer.send("t", b"%d" % number) for number in range(500)])
        await until(lambda: len(recorder.results) == 500)

    assert recorder.results == found
    assert [result.offset for result in recorder.results] == list(range(500))


async def test_a_cancelled_delivery_is_acknowledged_with_the_result_of_the_record():
    recorder = Recorder()

    async with producing(interceptors=[recorder]) as (cluster, producer):
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=hold)
        delivery = await producer.send("t", b"v")
        delivery.cancel()
        hold.set()
        await until(lambda: recorder.results)

    assert isinstance(recorder.results[0], RecordMetadata)
    assert recorder.results[0].offset == 0


async def test_a_cancelled_send_is_acknowledged_with_the_cancellation():
    recorder = Recorder()

    async with producing(interceptors=[recorder], topics={}, cluster={"auto_create": False}) as (_, producer):
        sending = asyncio.ensure_future(producer.send("unknown", b"v"))
        await until(lambda: recorder.records)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    assert [type(result) for result in recorder.results] == [asyncio.CancelledError]


async def test_a_send_cancelled_after_its_record_was_buffered_is_acknowledged_with_the_metadata(
    monkeypatch,
):
    recorder = Recorder()
    hold = asyncio.Event()

    async with producing(interceptors=[recorder], **FOUR_RECORDS_FILL_IT) as (cluster, producer):
        cluster.faults.add(PRODUCE, hold=hold)
        for number in range(4):
            await producer.send("t", b"%d" % number + b"x" * LARGE)
        sending = asyncio.create_task(producer.send("t", b"4" + b"x" * LARGE))
        await until(lambda: producer._accumulator.memory.waiters)
        serve = producer._accumulator.lock._try_to_serve

        def cancelled_in_the_same_turn(waiter, append):
            is_served = serve(waiter, append)
            if is_served:
                sending.cancel()
            return is_served

        monkeypatch.setattr(producer._accumulator.lock, "_try_to_serve", cancelled_in_the_same_turn)
        hold.set()
        await asyncio.wait([sending])
        assert sending.cancelled()
        await within(2, producer.flush())
        await until(lambda: len(recorder.results) == 5)

        assert len(values(cluster)) == 5
        assert [type(result) for result in recorder.results] == [RecordMetadata] * 5


async def test_a_records_own_timeout_is_acknowledged():
    recorder = Recorder()

    async with producing(interceptors=[recorder]) as (cluster, producer):
        await producer.partitions_for("t")
        hold = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=hold)
        error = await error_of(await producer.send("t", b"v", timeout=20 * MS))
        hold.set()
        await until(lambda: recorder.results)

    assert isinstance(error, DeliveryTimeoutError)
    assert [type(result) for result in recorder.results] == [DeliveryTimeoutError]


@pytest.mark.promise(
    "Coming from other clients",
    "interceptors run before everything else in `send` and once per record at its end; one that raises is "
    "skipped",
)
async def test_an_interceptor_that_raises_is_logged_and_skipped(caplog):
    recorder = Recorder()

    with caplog.at_level(logging.WARNING):
        async with producing(interceptors=[Broken(), recorder]) as (cluster, producer):
            await producer.send_and_wait("t", b"v")
            assert values(cluster) == [b"v"]
            await until(lambda: recorder.results)

    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "Broken.on_send raised" in text]
    assert [text for text in told if "Broken.on_acknowledgement raised" in text]
    assert len(recorder.records) == len(recorder.results) == 1


@pytest.mark.parametrize("made", ["nothing", "a coroutine"])
async def test_an_on_send_that_returns_no_record_is_skipped(caplog, made):
    class Forgetful:
        def on_send(self, record):
            return None

    class Late:
        async def on_send(self, record):
            return record

    async with producing(interceptors=[Forgetful() if made == "nothing" else Late()]) as (cluster, producer):
        await producer.send_and_wait("t", b"v")
        assert values(cluster) == [b"v"]

    returned = "NoneType" if made == "nothing" else "coroutine"
    assert (
        f"on_send returned {returned} instead of a ProducerRecord and was skipped for this record"
        in caplog.text
    )


def test_a_record_shows_neither_its_key_nor_its_value():
    record = ProducerRecord("t", b"secret value", b"secret key", 3, 17, [("h", b"secret header")])

    assert repr(record) == "ProducerRecord(topic='t', partition=3, timestamp_ms=17)"


class Keeps:
    """An interceptor that keeps each record with its result."""

    def __init__(self):
        self.ends = []

    def on_send(self, record):
        return record._replace(context=f"context of {record.value!r}")

    def on_acknowledgement(self, result, record):
        self.ends.append((result, record))


async def test_a_result_is_passed_with_its_record_and_the_context_that_on_send_set():
    keeps = Keeps()
    async with producing(interceptors=[keeps, Suffix(b"!")], value_serializer=lambda value: value * 2) as (
        cluster,
        producer,
    ):
        metadata = await producer.send_and_wait("t", b"v", headers=[("h", b"1")])
        await (await producer.send("t", b"w", timeout=5))
        tried = producer.try_send("t", b"x")
        await tried
        assert values(cluster) == [b"v!v!", b"w!w!", b"x!x!"]

    first, second, third = keeps.ends
    assert first == (
        metadata,
        ProducerRecord("t", b"v!", None, None, None, [("h", b"1")], "context of b'v'"),
    )
    assert [end[1].context for end in (second, third)] == ["context of b'w'", "context of b'x'"]


async def test_a_record_that_was_not_accepted_is_passed_with_its_error():
    keeps = Keeps()
    async with producing(interceptors=[keeps]) as (_, producer):
        with pytest.raises(InvalidRecordError):
            await producer.send("t", 5)
        with pytest.raises(InvalidRecordError):
            producer.try_send("t", 6)
        receipt = await producer.send_many("t", [7, b"v"])
        with pytest.raises(SendManyError):
            await receipt
    assert [(type(result).__name__, record.context) for result, record in keeps.ends] == [
        ("InvalidRecordError", "context of 5"),
        ("InvalidRecordError", "context of 6"),
        ("InvalidRecordError", "context of 7"),
        ("RecordMetadata", "context of b'v'"),
    ]


def takes(method):
    interceptors = Interceptors([type("One", (), {"on_acknowledgement": staticmethod(method)})()], LOG)
    [(_, takes_record)] = interceptors._on_acknowledgement
    return takes_record


def test_the_record_is_passed_to_a_second_parameter_that_needs_it():
    assert takes(lambda result, record: None)
    assert takes(lambda result, other: None)
    assert takes(lambda result, record=None: None)
    assert takes(lambda result, *rest: None)
    assert takes(lambda *both: None)
    assert not takes(lambda result: None)
    assert not takes(lambda result, **more: None)
    assert not takes(lambda result, log=print: None)
    assert not takes(lambda result, *, record=None: None)
    assert not takes([].append)


async def test_interceptors_see_each_record_of_a_batch_built_by_hand():
    recorder, keeps = Recorder(), Keeps()
    async with producing(
        interceptors=[recorder, keeps, Suffix(b"!")], value_serializer=lambda value: value + b"?"
    ) as (cluster, producer):
        batch = producer.create_batch()
        for number in range(3):
            batch.append(key=b"k", value=b"%d" % number, timestamp=number + 1, headers=[("h", b"x")])
        delivery = await producer.send_batch(batch, "t", partition=0)
        await delivery
        await until(lambda: len(keeps.ends) == 3)
        records = cluster.records("t")

    assert [(record.value, record.key, record.timestamp) for record in records] == [
        (b"0!?", b"k", 1),
        (b"1!?", b"k", 2),
        (b"2!?", b"k", 3),
    ]
    assert recorder.records[2] == ProducerRecord("t", b"2", b"k", 0, 3, [("h", b"x")])
    assert [(result.offset, record.context) for result, record in keeps.ends] == [
        (0, "context of b'0'"),
        (1, "context of b'1'"),
        (2, "context of b'2'"),
    ]


class Moves:
    def __init__(self, **changes):
        self.changes = changes

    def on_send(self, record):
        return record._replace(**self.changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "other"}, InvalidRecordError),
        ({"partition": 7}, InvalidRecordError),
        ({"value": 5}, InvalidRecordError),
        ({"value": b"v" * 2_000_000}, RecordTooLargeError),
    ],
)
async def test_a_change_that_an_interceptor_cannot_make_to_a_batch_fails_it_before_it_is_sent(changes, error):
    keeps = Keeps()
    async with producing(interceptors=[keeps, Moves(**changes)]) as (cluster, producer):
        batch = producer.create_batch()
        batch.append(key=None, value=b"v")
        with pytest.raises(error):
            await producer.send_batch(batch, "t", partition=0)
        assert values(cluster) == []
    assert [type(result) for result, _ in keeps.ends] == [error]


async def test_a_batch_with_interceptors_can_also_be_sent_only_once():
    recorder = Recorder()
    async with producing(interceptors=[recorder]) as (cluster, producer):
        batch = producer.create_batch()
        batch.append(key=None, value=b"v")
        await (await producer.send_batch(batch, "t", partition=0))
        with pytest.raises(IllegalStateError, match="already been sent"):
            await producer.send_batch(batch, "t", partition=0)
        with pytest.raises(IllegalStateError, match="empty"):
            await producer.send_batch(producer.create_batch(), "t", partition=0)
        assert values(cluster) == [b"v"]
