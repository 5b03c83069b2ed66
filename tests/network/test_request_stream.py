"""Requests to a peer that follows, bends or violates the protocol."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from aioproducer.errors import (
    BrokerConnectionError,
    CorrelationError,
    ProtocolError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from aioproducer.metrics import Metrics
from aioproducer.network import request_stream
from aioproducer.network.connection import Connection
from aioproducer.network.connection_state import ConnectionState
from aioproducer.network.request_stream import LATE_TIMER
from aioproducer.protocol.api import ApiKey, encode_response
from aioproducer.protocol.messages import (
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
)
from tests.conftest import MS, in_virtual_time
from tests.support.scripted_broker import (
    LONG,
    Peer,
    ScriptedBroker,
    make_connection,
    silence,
    until,
)


@asynccontextmanager
async def connected(serve, handshake=None, **settings):
    """Yield a READY connection to a peer that runs `serve` after the handshake."""

    async def run(peer: Peer) -> None:
        await peer.handshake(**(handshake or {}))
        await serve(peer)

    async with ScriptedBroker(run) as broker:
        connection = make_connection(broker.port, **settings)
        await connection.connect()
        try:
            yield connection
        finally:
            await connection.close()
            assert connection.is_gone


async def echo(peer: Peer) -> None:
    """Answer each Metadata request with an empty response."""
    while True:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse())


def request(connection: Connection, timeout: float = LONG) -> asyncio.Future:
    return connection.request(MetadataRequest(topics=[]), timeout=timeout)


def produce_of(size: int) -> ProduceRequest:
    return ProduceRequest(
        acks=0,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[ProduceRequest.PartitionProduceData(index=0, records=[bytes(size)])],
            )
        ],
    )


def produce(connection: Connection, size: int = 10) -> asyncio.Future:
    return connection.request(produce_of(size), timeout=LONG, version_ceiling=9, expects_response=False)


async def failure(future: asyncio.Future) -> BaseException:
    """Return the exception of the future, which must fail soon."""
    await asyncio.wait([future], timeout=LONG)
    assert future.done()
    return future.exception()


# Requests and responses


async def test_responses_are_assigned_to_requests_in_order():
    async def serve(peer: Peer) -> None:
        headers = [(await peer.request())[0] for _ in range(5)]
        peer.writer.write(
            b"".join(
                peer.frame(header, MetadataResponse(controller_id=index))
                for index, header in enumerate(headers)
            )
        )
        await silence(peer)

    async with connected(serve) as connection:
        answers = await asyncio.gather(*(request(connection) for _ in range(5)))
        assert connection.in_flight == 0

    assert [answer.controller_id for answer in answers] == [0, 1, 2, 3, 4]


async def test_the_callback_runs_in_the_turn_in_which_the_response_arrives(monkeypatch):
    is_reading = False
    read = Connection._read_responses

    def reading(self, data):
        nonlocal is_reading
        is_reading = True
        read(self, data)
        is_reading = False

    monkeypatch.setattr(Connection, "_read_responses", reading)
    async with connected(echo) as connection:
        called = []

        def answered(answer, error):
            called.append((answer, error, is_reading))

        message = MetadataRequest(topics=[])
        answer = await connection.request(message, timeout=LONG, answered=answered)

        assert called == [(answer, None, True)]


@pytest.mark.parametrize("when", ["it is in flight", "the connection is closed", "the stream is closing"])
async def test_the_callback_receives_a_failure_once_and_after_the_request(when):
    async with connected(silence) as connection:
        called = []
        if when == "the connection is closed":
            await connection.close()
        if when == "the stream is closing":
            connection._wire.writer.close()

        lost = connection.request(
            MetadataRequest(topics=[]), timeout=LONG, answered=lambda *found: called.append(found)
        )

        assert called == []
        await connection.close()
        await asyncio.sleep(0)
        assert [(answer, error) for answer, error in called] == [(None, lost.exception())]
        assert isinstance(lost.exception(), BrokerConnectionError)


async def test_a_response_that_arrives_byte_by_byte_is_read():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        for byte in peer.frame(header, MetadataResponse(controller_id=7)):
            peer.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await silence(peer)

    async with connected(serve) as connection:
        assert (await request(connection)).controller_id == 7


async def test_a_large_answer_is_read():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        topics = [MetadataResponse.MetadataResponseTopic(name="t" * 200) for _ in range(5000)]
        peer.answer(header, MetadataResponse(topics=topics))
        await silence(peer)

    async with connected(serve) as connection:
        assert len((await request(connection)).topics) == 5000


async def test_a_request_is_encoded_at_the_agreed_version_below_its_ceiling():
    versions = []

    async def serve(peer: Peer) -> None:
        for _ in range(2):
            header, _ = await peer.request()
            versions.append(header.version)
            peer.answer(header, MetadataResponse())
        await silence(peer)

    async with connected(serve, {"metadata": (0, 11)}) as connection:
        await request(connection)
        await connection.request(MetadataRequest(topics=[]), timeout=LONG, version_ceiling=8)

    assert versions == [11, 8]


@pytest.mark.promise(
    "Rules of Kafka's producer", "a request that no common version can carry fails locally, as NOT_PERSISTED"
)
async def test_a_request_without_common_version_raises_and_nothing_is_written():
    async with connected(echo, {"init_producer_id": (6, 9)}) as connection:
        with pytest.raises(UnsupportedVersionError, match="6-9") as caught:
            connection.request(InitProducerIdRequest(), timeout=LONG)

        assert caught.value.written is False
        assert connection.in_flight == 0
        await request(connection)


async def test_correlation_ids_start_again_after_the_highest():
    async with connected(echo) as connection:
        connection._correlation_id = 2**31 - 2
        await asyncio.gather(request(connection), request(connection))
        assert connection._correlation_id == 0


async def test_requests_and_bytes_are_counted():
    metrics = Metrics()
    async with ScriptedBroker(lambda peer: _handshake_and_echo(peer)) as broker:
        connection = make_connection(broker.port, metrics=metrics)
        await connection.connect()
        await request(connection)
        await connection.close()

    counted = metrics.node(1)
    assert (counted.requests, counted.responses, counted.connects, counted.disconnects) == (2, 2, 1, 1)
    assert counted.bytes_sent > 0
    assert counted.bytes_received > 0
    assert counted.latency.count == 2


async def _handshake_and_echo(peer: Peer) -> None:
    await peer.handshake()
    await echo(peer)


async def test_segments_of_all_sizes_arrive_in_order():
    sizes = [1, 70_000, 10, 200_000, 65_536, 65_535, 3]
    received = []

    async def serve(peer: Peer) -> None:
        _, message = await peer.request()
        for part in message.topic_data[0].partition_data:
            received.append((len(part.records), bytes(part.records[:1])))
        await silence(peer)

    parts = [
        ProduceRequest.PartitionProduceData(index=index, records=[bytes([65 + index]) * size])
        for index, size in enumerate(sizes)
    ]
    message = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[ProduceRequest.TopicProduceData(name="t", partition_data=parts)],
    )
    async with connected(serve) as connection:
        connection.request(message, timeout=LONG, version_ceiling=9)
        await until(lambda: received)

    assert received == [(size, bytes([65 + index])) for index, size in enumerate(sizes)]


# Errors that close a connection


async def assert_all_fail(connection: Connection, kind: type[BaseException], count: int = 3) -> list:
    futures = [request(connection) for _ in range(count)]
    errors = [await failure(future) for future in futures]
    assert [type(error) for error in errors] == [kind] * count
    assert all(error.written for error in errors)
    assert connection.state is ConnectionState.CLOSED
    assert connection.in_flight == 0
    assert not connection.can_send
    return errors


@pytest.mark.promise("Accumulator, sender, connections", "any time-out or violation closes the connection")
async def test_a_wrong_correlation_id_closes_the_connection_and_fails_everything():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(), correlation_id=header.correlation_id + 1)
        await silence(peer)

    async with connected(serve) as connection:
        errors = await assert_all_fail(connection, CorrelationError)
        assert connection.node.host in str(errors[0])


async def test_swapped_answers_close_the_connection():
    async def serve(peer: Peer) -> None:
        headers = [(await peer.request())[0] for _ in range(3)]
        for header in reversed(headers):
            peer.answer(header, MetadataResponse())
        await silence(peer)

    async with connected(serve) as connection:
        await assert_all_fail(connection, CorrelationError)


async def test_a_repeated_response_closes_the_connection():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse())
        peer.answer(header, MetadataResponse())
        await silence(peer)

    async with connected(serve) as connection:
        await request(connection)
        await until(lambda: connection.is_gone)
        assert isinstance(connection.error, ProtocolError)


async def test_every_truncated_answer_in_a_complete_frame_closes_the_connection():
    whole = b"".join(encode_response(MetadataResponse(cluster_id="abc"), 9, 1))[4:]

    for length in range(4, len(whole)):

        async def serve(peer: Peer, length: int = length) -> None:
            await peer.request()
            peer.writer.write(length.to_bytes(4, "big") + whole[:length])
            await silence(peer)

        async with connected(serve, {"metadata": (0, 9)}) as connection:
            assert isinstance(await failure(request(connection)), ProtocolError)
            assert connection.state is ConnectionState.CLOSED


async def test_bytes_after_a_response_close_the_connection():
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        whole = peer.frame(header, MetadataResponse())[4:] + b"\x00"
        peer.writer.write(len(whole).to_bytes(4, "big") + whole)
        await silence(peer)

    async with connected(serve) as connection:
        await assert_all_fail(connection, ProtocolError)


@pytest.mark.promise("Protocol", "frame sizes are capped before and after authentication")
@pytest.mark.parametrize("prefix", [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x04\x00\x00\x01"])
async def test_a_frame_beyond_the_limit_closes_the_connection_before_it_is_read(prefix):
    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(prefix)
        await silence(peer)

    async with connected(serve) as connection:
        await assert_all_fail(connection, ProtocolError)


@pytest.mark.parametrize("sent", [b"", b"\x00", b"\x00\x00\x00\x10", b"\x00\x00\x00\x10abc"])
async def test_a_broker_that_closes_the_connection_fails_requests_in_flight(sent):
    async def serve(peer: Peer) -> None:
        for _ in range(3):
            await peer.request()
        peer.writer.write(sent)

    async with connected(serve) as connection:
        errors = await assert_all_fail(connection, BrokerConnectionError)
        assert "closed the connection" in str(errors[0])


async def test_responses_before_the_close_are_still_used():
    async def serve(peer: Peer) -> None:
        headers = [(await peer.request())[0] for _ in range(2)]
        peer.answer(headers[0], MetadataResponse(controller_id=4))

    async with connected(serve) as connection:
        first, second = request(connection), request(connection)
        assert (await first).controller_id == 4
        assert isinstance(await failure(second), BrokerConnectionError)


async def test_a_response_that_cannot_be_handled_closes_the_connection(monkeypatch, caplog):
    async with connected(echo) as connection:

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(request_stream, "decode_response", broken)
        await assert_all_fail(connection, ProtocolError)
        assert "a bug" in caplog.text


async def test_closing_fails_requests_in_flight_and_later_requests_are_not_written():
    async with connected(silence) as connection:
        future = request(connection)
        await connection.close()
        await connection.close()

        assert isinstance(await failure(future), BrokerConnectionError)
        late = await failure(request(connection))
        assert isinstance(late, BrokerConnectionError)
        assert late.written is False


async def test_aborting_fails_requests_in_flight_with_the_given_error():
    async with connected(silence) as connection:
        future = request(connection)
        connection.abort(ProtocolError("left out 1 partition"))

        error = await failure(future)
        assert type(error) is ProtocolError
        assert "left out 1 partition" in str(error)


# Deadlines


@pytest.mark.promise("Accumulator, sender, connections", "any time-out or violation closes the connection")
async def test_a_request_that_is_not_answered_in_time_closes_the_connection_and_fails_all():
    async with connected(silence) as connection:
        early, late = request(connection, 50 * MS), request(connection, LONG)

        assert type(await failure(early)) is RequestTimedOutError
        error = await failure(late)
        assert type(error) is BrokerConnectionError
        assert "METADATA within" in str(error)
        assert early.exception().written
        assert error.written
        assert connection.state is ConnectionState.CLOSED


async def test_a_later_request_with_an_earlier_deadline_is_the_one_that_times_out():
    loop = asyncio.get_running_loop()
    async with connected(silence) as connection:
        began = loop.time()
        request(connection, 30.0)
        assert type(await failure(request(connection, 50 * MS))) is RequestTimedOutError
        assert loop.time() - began < LONG


async def test_a_response_that_arrives_slowly_does_not_extend_its_deadline():
    async def serve(peer: Peer) -> None:
        await peer.request()
        peer.writer.write(b"\x00\x00\x01\x00")
        while True:
            peer.writer.write(b"x")
            await asyncio.sleep(10 * MS)

    async with connected(serve) as connection:
        assert type(await failure(request(connection, 100 * MS))) is RequestTimedOutError


async def test_responses_in_time_advance_the_deadline():
    async with connected(echo) as connection:
        timeout = 100 * MS
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 3 * timeout:
            await request(connection, timeout)
            await asyncio.sleep(5 * MS)
        assert connection.state is ConnectionState.READY


async def test_one_timer_serves_any_number_of_requests():
    async with connected(echo) as connection:
        await request(connection)
        timer = connection._timer
        for _ in range(10):
            await asyncio.gather(request(connection), request(connection))
        assert connection._timer is timer


async def test_a_response_that_waited_while_the_loop_was_blocked_does_not_time_out():
    written = asyncio.Event()

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(controller_id=9))
        written.set()
        await silence(peer)

    async with connected(serve) as connection:
        connection_timeout = 20 * MS
        future = request(connection, connection_timeout)
        await written.wait()
        # The response is in our socket when the deadline passes, but the loop could not read it yet.
        import time

        time.sleep(connection_timeout + 2 * LATE_TIMER)  # noqa: ASYNC251
        assert (await future).controller_id == 9


async def test_a_request_that_never_left_the_transport_was_not_written():
    async with connected(_read_nothing) as connection:
        sent = connection.request(
            produce_of(32 * 1024 * 1024), timeout=100 * MS, version_ceiling=9, expects_response=True
        )
        behind = request(connection)

        assert not connection.can_send
        first, second = await failure(sent), await failure(behind)
        assert first.written is True
        assert second.written is False


async def _read_nothing(peer: Peer) -> None:
    peer.writer.transport.pause_reading()
    await asyncio.Event().wait()


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "nothing is drained for a broker that can't take it: batches fill, and expire as NOT_PERSISTED",
)
async def test_a_full_transport_accepts_requests_again_once_it_is_empty():
    changes = []
    may_read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        peer.writer.transport.pause_reading()
        await may_read.wait()
        peer.writer.transport.resume_reading()
        await silence(peer)

    async with connected(serve) as connection:
        connection.on_change = lambda connection: changes.append(connection.can_send)
        connection.request(produce_of(32 * 1024 * 1024), timeout=LONG, version_ceiling=9)
        assert not connection.can_send

        may_read.set()
        await until(lambda: changes)
        assert changes == [True]


# Cancelled and forgotten futures


async def test_the_response_to_a_cancelled_request_is_read_and_dropped():
    release = asyncio.Event()

    async def serve(peer: Peer) -> None:
        headers = [(await peer.request())[0] for _ in range(3)]
        await release.wait()
        for index, header in enumerate(headers):
            peer.answer(header, MetadataResponse(controller_id=index))
        await silence(peer)

    async with connected(serve) as connection:
        first, second, third = (request(connection) for _ in range(3))
        second.cancel()
        release.set()

        assert (await first).controller_id == 0
        assert (await third).controller_id == 2
        assert second.cancelled()
        assert connection.state is ConnectionState.READY


async def test_cancelled_and_forgotten_futures_are_not_reported_to_the_loop():
    noise = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: noise.append(context))
    async with connected(silence) as connection:
        request(connection).cancel()
        request(connection)
        produce(connection)
        await connection.close()
        request(connection)
    gc.collect()
    await asyncio.sleep(0)

    assert noise == []


# When a request may be sent


@pytest.mark.promise("Accumulator, sender, connections", "a connection has up to 5 requests in flight")
async def test_at_the_in_flight_limit_no_request_is_sent_until_a_response_arrives():
    release = asyncio.Event()
    changes = []

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        await release.wait()
        peer.answer(header, MetadataResponse())
        await silence(peer)

    async with connected(serve, max_in_flight_requests_per_connection=2) as connection:
        connection.on_change = lambda connection: changes.append(connection.can_send)
        first = request(connection)
        assert connection.can_send
        request(connection)
        assert not connection.can_send
        assert connection.in_flight == 2

        release.set()
        await first
        assert changes == [True]


@pytest.mark.parametrize(("latency", "answered"), [(0.0005, 3), (0.02, 1)], ids=["near", "far"])
async def test_at_the_in_flight_limit_sending_resumes_after_half_the_responses_if_nearby_else_after_one(
    latency, answered
):
    changes = []

    async def serve(peer: Peer) -> None:
        for _ in range(5):
            header, _ = await peer.request()
            await go_on.acquire()
            peer.answer(header, MetadataResponse())
        await silence(peer)

    go_on = asyncio.Semaphore(0)
    async with connected(serve, max_in_flight_requests_per_connection=5) as connection:
        futures = [request(connection) for _ in range(5)]
        assert not connection.can_send
        connection.on_change = lambda connection: changes.append(connection.in_flight)

        for number, future in enumerate(futures, start=1):
            connection._loop = SimpleNamespace(time=lambda: 0.0)
            connection.latency = latency
            connection._in_flight[0].sent_at = -latency
            go_on.release()
            await future
            assert connection.can_send is (number >= answered)
        assert changes == [5 - answered]
        connection._loop = asyncio.get_running_loop()


@pytest.mark.promise(
    "Rules of Kafka's producer", "a metadata refresh never waits behind a full deque of requests in flight"
)
async def test_metadata_may_exceed_the_limit_in_flight():
    async with connected(echo, max_in_flight_requests_per_connection=1) as connection:
        await asyncio.gather(*(request(connection) for _ in range(3)))


@pytest.mark.promise("Accumulator, sender, connections", "a throttle is honoured")
@pytest.mark.parametrize(
    ("throttle_ms", "seconds"), [(5000, 5.0), (2**31 - 1, 60.0), (0, 0.0), (-5, 0.0), (-(2**31), 0.0)]
)
async def test_a_throttle_mutes_the_connection_for_at_most_a_minute(throttle_ms, seconds):
    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(throttle_time_ms=throttle_ms))
        await silence(peer)

    metrics = Metrics()
    async with connected(serve) as connection:
        connection._metrics = metrics.node(1)
        await request(connection)
        left = connection.throttled_until - asyncio.get_running_loop().time()

        assert connection.can_send == (seconds == 0)
        assert metrics.node(1).throttles.total == seconds
        assert left == pytest.approx(seconds, abs=1.0) or seconds == 0


# acks=0


async def test_a_request_with_acks_0_completes_when_its_bytes_have_left():
    received = asyncio.Event()

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        assert header.api_key == ApiKey.PRODUCE
        received.set()
        await echo(peer)

    async with connected(serve) as connection:
        assert await produce(connection) is None
        await asyncio.wait_for(received.wait(), LONG)
        assert connection.in_flight == 0
        # The deque was not changed: the next response belongs to the next request.
        await request(connection)


async def test_requests_with_acks_0_wait_while_their_bytes_are_in_the_transport():
    may_read = asyncio.Event()

    async def serve(peer: Peer) -> None:
        peer.writer.transport.pause_reading()
        await may_read.wait()
        peer.writer.transport.resume_reading()
        await silence(peer)

    async with connected(serve) as connection:
        big, small = produce(connection, 32 * 1024 * 1024), produce(connection)
        await asyncio.sleep(20 * MS)
        assert not big.done()
        assert not small.done()
        assert connection.in_flight == 2

        may_read.set()
        assert await asyncio.wait_for(asyncio.gather(big, small), LONG) == [None, None]
        assert connection.in_flight == 0
        assert connection.can_send


async def test_requests_with_acks_0_also_have_a_deadline():
    async with connected(_read_nothing) as connection:
        future = connection.request(
            produce_of(32 * 1024 * 1024), timeout=50 * MS, version_ceiling=9, expects_response=False
        )
        assert type(await failure(future)) is RequestTimedOutError
        assert connection.state is ConnectionState.CLOSED


async def test_a_response_to_a_request_with_acks_0_is_dropped_once():
    """Azure Event Hubs responds to requests with acks=0."""

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        peer.answer(header, MetadataResponse(), version=9)
        wanted, _ = await peer.request()
        peer.answer(wanted, MetadataResponse())
        await peer.request()
        peer.answer(header, MetadataResponse(), version=9)
        await silence(peer)

    async with connected(serve) as connection:
        await produce(connection)
        await request(connection)
        assert connection.state is ConnectionState.READY

        # The response has the correlation id of the first request, which was already answered.
        await produce(connection)
        await until(lambda: connection.is_gone)
        assert "without a request in flight" in str(connection.error)


# Orderly closing


@pytest.mark.promise(
    "Accumulator, sender, connections", "idle connections close and are reopened when needed"
)
async def test_an_idle_connection_closes_without_error():
    async with connected(silence, connections_max_idle_ms=60) as connection:
        await until(lambda: connection.is_gone)
        assert connection.error is None


@in_virtual_time
async def test_a_connection_in_use_is_not_idle():
    async with connected(echo, connections_max_idle_ms=150_000 * MS) as connection:
        for _ in range(10):
            await request(connection)
            await asyncio.sleep(30 * MS)
        assert connection.state is ConnectionState.READY
        await until(lambda: connection.is_gone)


@in_virtual_time
async def test_a_request_in_flight_is_not_idle():
    async with connected(silence, connections_max_idle_ms=30) as connection:
        future = request(connection, 200 * MS)
        assert type(await failure(future)) is RequestTimedOutError


async def test_zero_as_idle_time_means_never():
    async with connected(silence, connections_max_idle_ms=0) as connection:
        connection._timer.cancel()
        connection._on_timer()
        assert connection._timer is None
        assert connection.state is ConnectionState.READY


async def test_draining_completes_requests_in_flight_and_then_closes():
    release = asyncio.Event()

    async def serve(peer: Peer) -> None:
        header, _ = await peer.request()
        await release.wait()
        peer.answer(header, MetadataResponse(controller_id=3))
        await silence(peer)

    async with connected(serve) as connection:
        future = request(connection)
        connection.drain()
        connection.drain()
        assert connection.state is ConnectionState.DRAINING
        assert isinstance(await failure(request(connection)), BrokerConnectionError)

        release.set()
        assert (await future).controller_id == 3
        await until(lambda: connection.is_gone)
        assert connection.error is None


async def test_draining_without_requests_in_flight_closes_immediately():
    async with connected(silence) as connection:
        connection.drain()
        assert connection.state is ConnectionState.CLOSED
        assert connection.error is None
