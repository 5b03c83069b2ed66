"""Metadata: the topics that are requested and when, waiting callers, and the handling of bad responses."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest

from aioproducer.cluster import LeaderHint
from aioproducer.errors import (
    AuthenticationError,
    BootstrapError,
    BrokerConnectionError,
    InvalidTopicError,
    MetadataTimeoutError,
    ProducerClosed,
    TopicAuthorizationError,
    UnknownPartitionError,
    UnsupportedVersionError,
)
from aioproducer.network.metadata import SHORTEST_PAUSE
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import MetadataRequest, MetadataResponse, ProduceResponse
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS, in_virtual_time
from tests.support.scripted_broker import (
    HOST,
    LONG,
    Net,
    Peer,
    ScriptedBroker,
    dead_port,
    metadata_response,
    until,
)

Answer = Callable[["Teller", int, MetadataRequest], MetadataResponse | None]


class Teller(ScriptedBroker):
    """A broker that answers Metadata requests with the result of `answer(teller, number of the request, request)`.

    All requests during the first update have the number 0. If the result is None, the request gets no response."""

    def __init__(self, answer: Answer | None = None) -> None:
        super().__init__(self._tell)
        self._answer = answer or (lambda teller, _, request: self.all_of(request))
        self.requests: list[MetadataRequest] = []
        self.asked_at: list[float] = []
        """The arrival time of each request, in loop time."""
        self.is_started = False

    @property
    def asked(self) -> list[list[str]]:
        """The topics of each request."""
        return [[topic.name for topic in request.topics] for request in self.requests]

    @property
    def pauses(self) -> list[float]:
        """The seconds between consecutive requests; a stalled machine can only lengthen them."""
        return [later - earlier for earlier, later in itertools.pairwise(self.asked_at)]

    def all_of(self, request: MetadataRequest, partitions: int = 1, **fields: object) -> MetadataResponse:
        """Create a response in which every requested topic exists."""
        topics = {topic.name: partitions for topic in request.topics}
        return metadata_response(self.port, topics, **fields)

    def with_error(self, request: MetadataRequest, error: int) -> MetadataResponse:
        """Create a response in which every requested topic has an error."""
        response = self.all_of(request, 0)
        for topic in response.topics:
            topic.error_code = error
        return response

    async def _tell(self, peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, request = await peer.request()
            self.requests.append(request)
            self.asked_at.append(asyncio.get_running_loop().time())
            answer = self._answer(self, len(self.requests) if self.is_started else 0, request)
            if answer is not None:
                peer.answer(header, answer)


@asynccontextmanager
async def told_by(answer: Answer | None = None, *, start: bool = True, **settings: object):
    """Yield a running Metadata and the broker that answers it."""
    async with Teller(answer) as teller, Net(teller.address, **settings) as net:
        if start:
            await net.start()
            teller.requests.clear()
            teller.asked_at.clear()
            teller.is_started = True
        yield net, teller


def soon(seconds: float = LONG) -> float:
    return asyncio.get_running_loop().time() + seconds


# The first update


async def test_the_first_update_learns_the_brokers_and_requests_no_topic():
    async with told_by(start=False) as (net, teller):
        await net.metadata.first_update(soon())

        assert net.metadata.version == 1
        assert list(net.metadata.cluster.nodes) == [0]
        assert net.metadata.cluster.cluster_id == "test"
        assert teller.asked == [[]]
        assert net.metrics.metadata_updates == 1


@pytest.mark.parametrize("task_first", [True, False])
async def test_the_first_update_and_the_task_share_one_request(task_first):
    async with told_by(start=False) as (net, teller):
        if task_first:
            net.run()
            await asyncio.sleep(0)
        waiting = asyncio.create_task(net.metadata.first_update(soon()))
        if not task_first:
            await asyncio.sleep(0)
            net.run()
        await waiting
        await asyncio.sleep(20 * MS)

        assert teller.asked == [[]]


@in_virtual_time
async def test_the_first_update_names_each_address_that_does_not_answer():
    ports = dead_port(), dead_port()
    async with Net(f"{HOST}:{ports[0]},{HOST}:{ports[1]}") as net:
        began = asyncio.get_running_loop().time()
        with pytest.raises(BootstrapError) as caught:
            await net.metadata.first_update(soon(300 * MS))

        # uvloop counts in milliseconds, so a timer may fire up to 1 ms too early.
        assert asyncio.get_running_loop().time() - began >= 298 * MS
        for port in ports:
            assert f"{HOST}:{port}" in str(caught.value)
        assert "refused" in str(caught.value).lower() or "Connect call failed" in str(caught.value)


async def test_the_first_update_waits_for_a_broker_that_is_still_starting():
    port = dead_port()
    async with Net(f"{HOST}:{port}") as net:
        net.run()
        waiting = asyncio.create_task(net.metadata.first_update(soon()))
        await until(lambda: net.brokers.lost >= 2)
        teller = Teller()
        teller.port = port
        async with teller:
            await waiting
            await net.brokers.close()


async def test_the_first_update_skips_a_dead_bootstrap_address():
    async with Teller() as teller, Net(f"{HOST}:{dead_port()},{teller.address},{HOST}:{dead_port()}") as net:
        await net.metadata.first_update(soon())
        assert net.metadata.version == 1


async def test_the_first_update_fails_immediately_on_peers_that_are_not_kafka_brokers():
    async def serve(peer: Peer) -> None:
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.read_to_end()

    async with ScriptedBroker(serve) as web, Net(web.address) as net:
        with pytest.raises(BootstrapError, match="HTTP"):
            await asyncio.wait_for(net.metadata.first_update(soon(600)), LONG)


async def test_the_first_update_fails_immediately_on_brokers_that_are_too_old():
    async def serve(peer: Peer) -> None:
        await peer.handshake(metadata=(0, 5))
        await peer.read_to_end()

    async with ScriptedBroker(serve) as old, Net(old.address) as net:
        with pytest.raises(UnsupportedVersionError, match="0-5"):
            await asyncio.wait_for(net.metadata.first_update(soon(600)), LONG)


@in_virtual_time
async def test_the_first_update_fails_on_a_silent_broker_at_its_deadline():
    async with Teller(lambda *_: None) as teller, Net(teller.address) as net:
        with pytest.raises(BootstrapError, match="connected"):
            await net.metadata.first_update(soon(200 * MS))


async def test_the_first_update_names_the_last_failure_even_if_the_broker_has_just_reconnected():
    """A SASL listener closes the connection on the first Metadata request, so each attempt starts with a connection."""
    is_asked_again = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await peer.request()
        if broker.connections > 1:
            is_asked_again.set()
            await peer.read_to_end()

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        patient = asyncio.create_task(net.metadata.first_update(soon(600)))
        await asyncio.wait_for(is_asked_again.wait(), LONG)
        with pytest.raises(BootstrapError, match=r"connected; the last request failed: .* require SASL"):
            await net.metadata.first_update(soon(50 * MS))

        patient.cancel()
        await asyncio.wait([patient])


async def test_a_rejection_that_arrives_together_with_the_deadline_of_the_first_update_counts(monkeypatch):
    async with Net(f"{HOST}:{dead_port()}") as net:
        (entry,) = net.brokers._entries.values()
        entry.last_error = AuthenticationError("the broker rejects us")
        # The task that sends the request has not run since the rejection.
        monkeypatch.setattr(net.metadata, "_refresh", asyncio.Event().wait)

        with pytest.raises(AuthenticationError, match="rejects us"):
            await net.metadata.first_update(soon(20 * MS))


# Waiting for a topic


@pytest.mark.promise("KIPs", "KIP-526: new topics are asked for alone, idle ones are forgotten")
async def test_a_new_topic_is_requested_immediately_and_alone():
    async with told_by(metadata_max_age_ms=600_000, retry_backoff_ms=100) as (net, teller):
        await net.metadata.wait_for_topic("a", soon())
        info = await net.metadata.wait_for_topic("b", soon())

        assert info.name == "b"
        assert net.metadata.topic("a") is not None
        assert teller.asked == [["a"], ["b"]]
        assert all(request.allow_auto_topic_creation for request in teller.requests)


async def test_a_known_topic_is_available_without_a_request():
    async with told_by() as (net, teller):
        first = await net.metadata.wait_for_topic("a", soon())
        assert await net.metadata.wait_for_topic("a", 0.0) is first
        assert teller.asked == [["a"]]


async def test_creating_topics_can_be_switched_off():
    async with told_by(allow_auto_create_topics=False) as (net, teller):
        await net.metadata.wait_for_topic("a", soon())
        assert not teller.requests[0].allow_auto_topic_creation


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata refreshes make no storm and let other tasks run, also with back-offs of 0",
)
async def test_many_waiting_callers_share_one_request():
    async with told_by() as (net, teller):
        topics = ["a", "b", "c"] * 50
        await asyncio.gather(*(net.metadata.wait_for_topic(topic, soon()) for topic in topics))
        assert teller.asked == [["a", "b", "c"]]


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "`send` waits for a topic that is being created; an unknown topic is asked for again, also for "
    "`try_send`, which does not wait",
)
@pytest.mark.parametrize("error", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE])
async def test_a_topic_that_is_being_created_is_asked_for_again_with_pauses(error):
    def answer(teller: Teller, number: int, request: MetadataRequest) -> MetadataResponse:
        if 0 < number < 6:
            return teller.with_error(request, error)
        return teller.all_of(request)

    async with told_by(answer, retry_backoff_ms=20) as (net, teller):
        began = asyncio.get_running_loop().time()
        await net.metadata.wait_for_topic("a", soon())

        assert teller.asked == [["a"]] * 6
        assert asyncio.get_running_loop().time() - began > 5 * 0.02 * 0.8


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "`send` waits for a topic that is being created; an unknown topic is asked for again, also for "
    "`try_send`, which does not wait",
)
@pytest.mark.parametrize("refused", ["topic", "request"])
async def test_an_unknown_topic_is_requested_again_even_if_no_caller_waits(refused):
    def answer(teller: Teller, number: int, request: MetadataRequest) -> MetadataResponse:
        if number != 1:
            return teller.all_of(request)
        if refused == "topic":
            return teller.with_error(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return teller.all_of(request, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

    async with told_by(answer, retry_backoff_ms=20_000 * MS, retry_backoff_max_ms=20_000 * MS) as (
        net,
        teller,
    ):
        net.metadata.ask_for("a")
        await until(lambda: "a" in net.metadata.cluster.topics or net.metrics.metadata_failures)
        for _ in range(3):
            net.metadata.ask_for("a")
        await until(lambda: net.metadata.topic("a") is not None)

        assert teller.asked == [["a"]] * 2
        assert teller.requests[1].allow_auto_topic_creation


async def test_a_topic_that_stays_unknown_ends_in_a_timeout_that_says_so():
    def answer(teller: Teller, _: int, request: MetadataRequest) -> MetadataResponse:
        return teller.with_error(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async with told_by(answer, retry_backoff_ms=20_000 * MS, retry_backoff_max_ms=40_000 * MS) as (
        net,
        teller,
    ):
        patient = asyncio.create_task(net.metadata.wait_for_topic("a", soon()))
        await until(lambda: len(teller.requests) >= 4)
        with pytest.raises(MetadataTimeoutError, match=r"topic a .*UNKNOWN_TOPIC_OR_PARTITION") as caught:
            await net.metadata.wait_for_topic("a", soon(50 * MS))

        assert caught.value.topic == "a"
        assert not patient.done()
        assert min(teller.pauses) >= 15 * MS
        patient.cancel()
        await asyncio.wait([patient])


@in_virtual_time
async def test_a_timeout_without_any_response_names_the_last_error():
    async with told_by() as (net, teller):
        await teller.__aexit__()
        with pytest.raises(MetadataTimeoutError, match="no broker is reachable"):
            await net.metadata.wait_for_topic("a", soon(300 * MS))


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\n"])
async def test_a_name_that_kafka_does_not_accept_is_rejected_without_a_request(name):
    async with told_by() as (net, teller):
        with pytest.raises(InvalidTopicError) as caught:
            await net.metadata.wait_for_topic(name, soon())
        assert caught.value.topic == name
        assert teller.requests == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, InvalidTopicError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, TopicAuthorizationError),
    ],
)
async def test_errors_that_do_not_pass_by_themselves_are_raised_immediately_and_not_kept(code, error):
    def answer(teller: Teller, number: int, request: MetadataRequest) -> MetadataResponse:
        if number == 1:
            return teller.with_error(request, code)
        return teller.all_of(request)

    async with told_by(answer) as (net, _teller):
        with pytest.raises(error, match="a"):
            await net.metadata.wait_for_topic("a", soon())
        assert (await net.metadata.wait_for_topic("a", soon())).name == "a"


async def test_one_bad_topic_does_not_affect_the_others():
    def answer(teller: Teller, _: int, request: MetadataRequest) -> MetadataResponse:
        response = teller.all_of(request)
        for topic in response.topics:
            if topic.name == "bad":
                topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
        return response

    async with told_by(answer) as (net, _teller):
        bad, good = await asyncio.gather(
            net.metadata.wait_for_topic("bad", soon()),
            net.metadata.wait_for_topic("good", soon()),
            return_exceptions=True,
        )
        assert isinstance(bad, TopicAuthorizationError)
        assert good.name == "good"


async def test_a_topic_without_partitions_is_waited_for():
    def answer(teller: Teller, number: int, request: MetadataRequest) -> MetadataResponse:
        return teller.all_of(request, partitions=0 if number == 1 else 2)

    async with told_by(answer) as (net, teller):
        info = await net.metadata.wait_for_topic("a", soon())
        assert len(info.partitions) == 2
        assert len(teller.requests) == 2


async def test_a_partition_that_is_added_is_waited_for():
    counts = itertools.chain([2, 2, 2], itertools.repeat(5))

    def answer(teller: Teller, _: int, request: MetadataRequest) -> MetadataResponse:
        return teller.all_of(request, partitions=next(counts) if request.topics else 0)

    async with told_by(answer) as (net, _teller):
        await net.metadata.wait_for_topic("a", soon(), partition=1)
        info = await net.metadata.wait_for_topic("a", soon(), partition=4)
        assert len(info.partitions) == 5


@in_virtual_time
async def test_a_partition_that_does_not_exist_has_its_own_error():
    async with told_by(lambda teller, _, request: teller.all_of(request, partitions=2)) as (net, teller):
        with pytest.raises(UnknownPartitionError, match="topic a has 2 partitions") as caught:
            await net.metadata.wait_for_topic("a", soon(200 * MS), partition=2)

        assert (caught.value.topic, caught.value.partition) == ("a", 2)
        assert len(teller.requests) >= 2


async def test_cancelling_one_waiting_caller_does_not_affect_the_others():
    release = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, request = await peer.request()
            if request.topics:
                await release.wait()
            peer.answer(header, metadata_response(broker.port, {topic.name: 1 for topic in request.topics}))

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.start()
        first, second = (asyncio.create_task(net.metadata.wait_for_topic("a", soon())) for _ in range(2))
        await asyncio.sleep(10 * MS)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        release.set()
        assert (await second).name == "a"
        assert net.metadata._waiters == {}


async def test_closing_fails_all_waiting_callers_and_all_later_ones():
    async with told_by(lambda teller, number, request: None if number else teller.all_of(request)) as (
        net,
        teller,
    ):
        waiting = [
            asyncio.create_task(net.metadata.wait_for_topic(topic, soon()))
            for topic in ("a", "b", "a")
            for _ in range(2)
        ]
        await until(lambda: teller.requests)
        net.metadata.close_waiters(ProducerClosed("the producer was closed"))

        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ProducerClosed] * 6
        assert len({id(result) for result in results}) == 6
        with pytest.raises(ProducerClosed, match="was closed"):
            await net.metadata.wait_for_topic("c", soon())


async def test_closing_and_cancelling_together_logs_nothing():
    noise = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    async with told_by(lambda teller, number, request: None if number else teller.all_of(request)) as (
        net,
        teller,
    ):
        waiting = asyncio.create_task(net.metadata.wait_for_topic("a", soon()))
        await until(lambda: teller.requests)
        net.metadata.close_waiters(ProducerClosed("closed"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    gc.collect()
    assert noise == []


# Refreshes


@pytest.mark.promise(
    "Rules of Kafka's producer",
    "records without a leader, a refused or lost connection, and a close at acks=0 cause one coalesced "
    "metadata refresh",
)
async def test_several_requests_for_an_update_cause_one_refresh():
    async with told_by() as (net, teller):
        await net.metadata.wait_for_topic("a", soon())
        version = net.metadata.version
        for _ in range(1000):
            net.metadata.request_update()
        await until(lambda: net.metadata.version > version)
        await asyncio.sleep(50 * MS)

        assert teller.asked == [["a"], ["a"]]


async def test_only_one_refresh_is_in_flight():
    most = in_flight = 0

    async def serve(peer: Peer) -> None:
        nonlocal most, in_flight
        await peer.handshake()
        while True:
            header, request = await peer.request()
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(5 * MS)
            in_flight -= 1
            peer.answer(header, metadata_response(broker.port, {topic.name: 1 for topic in request.topics}))

    async with ScriptedBroker(serve) as broker, Net(broker.address, retry_backoff_ms=1) as net:
        await net.start()
        for index in range(20):
            net.metadata.request_update()
            await net.metadata.wait_for_topic(f"t{index}", soon())

    assert most == 1


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata refreshes make no storm and let other tasks run, also with back-offs of 0",
)
@in_virtual_time
async def test_continuous_requests_for_an_update_cause_no_request_storm():
    async with told_by(retry_backoff_ms=50, retry_backoff_max_ms=200) as (net, teller):
        end = soon(0.5)
        while asyncio.get_running_loop().time() < end:
            net.metadata.request_update()
            await asyncio.sleep(1 * MS)

        # The pauses start at 40 ms or more, and double while the responses contain no news.
        assert 1 <= len(teller.requests) <= 5


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata refreshes make no storm and let other tasks run, also with back-offs of 0",
)
async def test_an_immediate_rejection_lets_other_tasks_run_even_without_a_back_off():
    async with Net("broker.example:9092", retry_backoff_ms=0) as net:
        asked = 0

        async def refused(*_: object) -> None:
            nonlocal asked
            asked += 1
            if asked > 100:
                pytest.fail("no other task ran")
            raise BrokerConnectionError("refused without a turn of the loop", written=False)

        net.brokers.request_any = refused
        net.run()
        await until(lambda: asked > 1)

        assert asked < 100


async def test_without_a_back_off_there_is_still_a_pause_between_two_requests():
    async with Net("broker.example:9092", retry_backoff_ms=0) as net:
        loop, asked = asyncio.get_running_loop(), []

        async def refused(*_: object) -> None:
            asked.append(loop.time())
            raise BrokerConnectionError("refused", written=False)

        net.brokers.request_any = refused
        net.run()
        await until(lambda: len(asked) > 3)

        assert all(later - before > 0.999 * SHORTEST_PAUSE for before, later in itertools.pairwise(asked))


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata refreshes make no storm and let other tasks run, also with back-offs of 0",
)
@in_virtual_time
async def test_metadata_that_is_old_immediately_causes_no_request_storm():
    async with told_by(metadata_max_age_ms=1, retry_backoff_ms=50, retry_backoff_max_ms=200) as (_, teller):
        await asyncio.sleep(0.5)

        # The pauses start at 40 ms or more, and double while the responses contain no news.
        assert 1 <= len(teller.requests) <= 5


async def test_a_request_for_an_update_during_a_refresh_is_not_forgotten():
    release = asyncio.Event()
    asked = []

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, request = await peer.request()
            asked.append(request)
            if len(asked) == 2:
                await release.wait()
            peer.answer(header, metadata_response(broker.port))

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.start()
        net.metadata.request_update()
        await until(lambda: len(asked) == 2)
        net.metadata.request_update()
        release.set()
        await until(lambda: len(asked) == 3)


@pytest.mark.promise("Accumulator, sender, connections", "metadata are refreshed when they are old")
async def test_metadata_is_refreshed_when_it_is_old():
    async with told_by(metadata_max_age_ms=50) as (net, teller):
        await net.metadata.wait_for_topic("a", soon())
        await until(lambda: len(teller.requests) >= 3)

        assert teller.asked[1:3] == [["a"], ["a"]]
        assert not teller.requests[1].allow_auto_topic_creation


@pytest.mark.promise("Accumulator, sender, connections", "idle topics are forgotten")
@pytest.mark.promise("KIPs", "KIP-526: new topics are asked for alone, idle ones are forgotten")
async def test_idle_topics_are_forgotten_and_used_ones_are_not():
    async with told_by(metadata_max_age_ms=50) as (net, teller):
        for name in ("idle", "used"):
            await net.metadata.wait_for_topic(name, soon())
        net.metadata._wanted["idle"] -= net.config.metadata_max_idle + 1
        net.metadata.touch("used")
        await until(lambda: "idle" not in net.metadata.cluster.topics)
        asked = len(teller.requests)
        await until(lambda: len(teller.requests) > asked + 1)

        assert teller.asked[-1] == ["used"]
        assert net.metadata.topic("idle") is None
        assert net.metadata.topic("used") is not None
        assert (await net.metadata.wait_for_topic("idle", soon())).name == "idle"


async def test_a_new_snapshot_wakes_the_sender_and_counts():
    async with told_by() as (net, _):
        net.wake.clear()
        version = net.metadata.version
        net.metadata.request_update()
        await until(lambda: net.metadata.version > version)
        assert net.wake.is_set()


async def test_a_failed_refresh_is_tried_again():
    dropped = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, request = await peer.request()
            if request.topics and not dropped.is_set():
                dropped.set()
                return
            peer.answer(header, metadata_response(broker.port, {topic.name: 1 for topic in request.topics}))

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.start()
        await net.metadata.wait_for_topic("a", soon())
        assert net.metrics.metadata_failures == 1
        assert net.metadata.last_error is None


@pytest.mark.parametrize("kind", ["no brokers", "error", "garbage"])
async def test_a_bad_answer_does_not_replace_what_is_known(kind, caplog):
    bad = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, request = await peer.request()
            response = metadata_response(broker.port, {topic.name: 1 for topic in request.topics})
            if not bad.is_set() and request.topics and not request.allow_auto_topic_creation:
                bad.set()
                if kind == "garbage":
                    peer.writer.write(
                        b"\x00\x00\x00\x08" + header.correlation_id.to_bytes(4, "big") + b"\xff" * 4
                    )
                    continue
                if kind == "no brokers":
                    response.brokers = []
                else:
                    response.error_code = ErrorCode.UNKNOWN_SERVER_ERROR
            peer.answer(header, response)

    async with ScriptedBroker(serve) as broker, Net(broker.address) as net:
        await net.start()
        await net.metadata.wait_for_topic("a", soon())
        before = net.metadata.cluster
        net.metadata.request_update()
        await until(lambda: net.metrics.metadata_failures == 1)
        assert net.metadata.cluster is before
        assert net.metadata.last_error is not None
        await until(lambda: net.metadata.last_error is None)


async def test_another_cluster_at_the_same_address_is_reported(caplog):
    def answer(teller: Teller, number: int, request: MetadataRequest) -> MetadataResponse:
        response = teller.all_of(request)
        response.cluster_id = "first" if number == 0 else "second"
        return response

    async with told_by(answer) as (net, _teller):
        net.metadata.request_update()
        await until(lambda: net.metadata.cluster.cluster_id == "second")
        assert "the cluster id changed from first to second" in caplog.text


# Leaders


def endpoints(*nodes: int) -> list[ProduceResponse.NodeEndpoint]:
    return [ProduceResponse.NodeEndpoint(node_id=node, host=HOST, port=9) for node in nodes]


async def test_a_leader_hint_is_applied_immediately_and_its_broker_is_known():
    async with told_by() as (net, teller):
        await net.metadata.wait_for_topic("a", soon())
        version = net.metadata.version
        net.wake.clear()

        assert net.metadata.apply_leader_hints([LeaderHint("a", 0, 5, 3)], endpoints(5))
        assert net.metadata.cluster.partition("a", 0).leader == 5
        assert net.metadata.version == version + 1
        assert net.wake.is_set()
        assert [node.node_id for node in net.brokers.nodes] == [0, 5]
        assert len(teller.requests) == 1


async def test_an_old_hint_changes_nothing():
    async with told_by() as (net, _):
        await net.metadata.wait_for_topic("a", soon())
        version = net.metadata.version
        assert not net.metadata.apply_leader_hints([LeaderHint("a", 0, 5, 0)], endpoints(5))
        assert not net.metadata.apply_leader_hints([LeaderHint("b", 0, 5, 9)], endpoints(5))
        assert net.metadata.version == version


@pytest.mark.promise("Accumulator, sender, connections", "leader hints in Produce responses are used")
async def test_metadata_requested_before_a_hint_does_not_undo_it():
    async with told_by() as (net, _):
        await net.metadata.wait_for_topic("a", soon())
        net.metadata.apply_leader_hints([LeaderHint("a", 0, 0, 3)], [])
        version = net.metadata.version
        net.metadata.request_update()
        await until(lambda: net.metadata.version > version)

        assert net.metadata.cluster.partition("a", 0).leader_epoch == 3


# Restarting from the bootstrap servers


@pytest.mark.promise(
    "Accumulator, sender, connections", "the bootstrap servers are asked again when no known broker is left"
)
@pytest.mark.promise("KIPs", "KIP-899: back to the bootstrap addresses when no known broker is left")
async def test_when_all_known_brokers_are_gone_the_bootstrap_servers_are_used_again():
    gone = dead_port()
    moved = False

    def answer(teller: Teller, _: int, request: MetadataRequest) -> MetadataResponse:
        topics = {topic.name: 1 for topic in request.topics}
        return metadata_response(teller.port if moved else gone, topics, node_id=3)

    async with told_by(answer) as (net, teller):
        assert [node.port for node in net.brokers.nodes] == [gone]
        moved = True
        assert (await net.metadata.wait_for_topic("a", soon())).partitions[0].leader == 3
        assert [node.port for node in net.brokers.nodes] == [teller.port]


@pytest.mark.promise(
    "KIPs",
    "KIP-1102: the client returns to the bootstrap addresses if a broker requests it or no broker answers "
    "for too long",
)
async def test_a_broker_may_request_a_rebootstrap():
    def answer(teller: Teller, number: int, request: MetadataRequest) -> MetadataResponse:
        response = teller.all_of(request)
        if number == 1:
            response.error_code = ErrorCode.REBOOTSTRAP_REQUIRED
        return response

    async with told_by(answer, retry_backoff_ms=1) as (net, _teller):
        net.metadata.request_update()
        await until(lambda: net.brokers.is_bootstrapping)
        assert net.metadata.cluster.nodes == {}
        await until(lambda: not net.brokers.is_bootstrapping)


@pytest.mark.promise(
    "KIPs",
    "KIP-1102: the client returns to the bootstrap addresses if a broker requests it or no broker answers "
    "for too long",
)
@in_virtual_time
async def test_brokers_that_do_not_answer_for_long_cause_a_rebootstrap():
    silent = True

    async def serve(peer: Peer) -> None:
        await peer.handshake()
        await peer.read_to_end()

    async with ScriptedBroker(serve) as dumb:

        def answer(teller: Teller, _: int, request: MetadataRequest) -> MetadataResponse:
            return metadata_response(dumb.port if silent else teller.port)

        async with told_by(answer, metadata_recovery_rebootstrap_trigger_ms=200) as (net, teller):
            silent = False
            began = asyncio.get_running_loop().time()
            net.metadata.request_update()
            await until(lambda: [node.port for node in net.brokers.nodes] == [teller.port])
            assert asyncio.get_running_loop().time() - began >= 0.19


@pytest.mark.promise("KIPs", "KIP-899: back to the bootstrap addresses when no known broker is left")
async def test_without_the_recovery_strategy_the_known_brokers_stay():
    gone = dead_port()

    def answer(teller: Teller, _: int, __: MetadataRequest) -> MetadataResponse:
        return metadata_response(gone)

    async with told_by(answer, metadata_recovery_strategy="none") as (net, teller):
        net.metadata.request_update()
        await until(lambda: net.metrics.metadata_failures >= 3)
        assert [node.port for node in net.brokers.nodes] == [gone]
        assert teller.requests == []


@pytest.mark.promise(
    "Accumulator, sender, connections", "the bootstrap servers are asked again when no known broker is left"
)
async def test_topics_and_counts_survive_a_rebootstrap():
    async with told_by(lambda teller, _, request: teller.all_of(request, partitions=4)) as (net, _teller):
        await net.metadata.wait_for_topic("a", soon())
        net.metadata._rebootstrap("a test")

        info = net.metadata.topic("a")
        assert len(info.partitions) == 4
        assert info.available == []


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata refreshes make no storm and let other tasks run, also with back-offs of 0",
)
@in_virtual_time
async def test_unreachable_brokers_behind_a_live_bootstrap_server_cause_no_request_storm():
    gone = dead_port()

    def answer(teller: Teller, _: int, __: MetadataRequest) -> MetadataResponse:
        return metadata_response(gone)

    async with told_by(
        answer,
        retry_backoff_ms=1,
        retry_backoff_max_ms=2,
        reconnect_backoff_ms=100,
        reconnect_backoff_max_ms=200,
    ) as (net, teller):
        net.metadata.request_update()
        await asyncio.sleep(0.6)
        # Each round has to wait for the back-off of the broker that is gone.
        assert 1 <= net.metrics.node(0).connect_failures <= 8
        assert teller.connections <= 10


# Against the embedded cluster


async def test_topics_leaders_and_moves_are_seen_in_a_cluster_of_three():
    async with (
        EmbeddedCluster(brokers=3, topics={"t": 12}) as cluster,
        Net(cluster.bootstrap_servers) as net,
    ):
        await net.start()
        info = await net.metadata.wait_for_topic("t", soon())
        assert len(info.partitions) == 12
        assert {partition.leader for partition in info.partitions} == {0, 1, 2}

        target = (info.partitions[0].leader + 1) % 3
        cluster.move_leader("t", 0, target)
        net.metadata.request_update()
        await until(lambda: net.metadata.cluster.partition("t", 0).leader == target)

        created = await net.metadata.wait_for_topic("made-by-asking", soon())
        assert created.partitions[0].leader >= 0


@pytest.mark.promise(
    "Accumulator, sender, connections", "the bootstrap servers are asked again when no known broker is left"
)
async def test_a_cluster_that_restarts_is_found_again():
    async with (
        EmbeddedCluster(brokers=2, topics={"t": 1}) as cluster,
        Net(cluster.bootstrap_servers) as net,
    ):
        await net.start()
        for node in range(2):
            await cluster.stop_broker(node)
        net.metadata.request_update()
        await until(lambda: net.metrics.metadata_failures >= 2)
        for node in range(2):
            await cluster.start_broker(node)
        assert (await net.metadata.wait_for_topic("t", soon())).name == "t"


async def test_after_the_end_no_task_and_no_socket_is_left():
    async with EmbeddedCluster(brokers=3, topics={"t": 3}) as cluster:
        async with Net(cluster.bootstrap_servers) as net:
            await net.start()
            await net.metadata.wait_for_topic("t", soon())
            for node in range(3):
                await net.become_ready(node)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("aioproducer ")]
