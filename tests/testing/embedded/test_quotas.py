"""Quotas of the embedded cluster: Kafka's arithmetic, and a connection that is answered and then muted."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import FetchRequest, FetchResponse, MetadataRequest, ProduceResponse
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.quotas import Quota, Quotas, Rate, Timed
from tests.conftest import MS
from tests.support.raw_client import RawClient, address, batch_of, produce_request

TEN_SECONDS_WORTH = 100_000  # the size of one request in bytes: ten seconds at BYTE_RATE
BYTE_RATE = 10_000


def large_request(acks: int = -1):
    return produce_request({("t", 0): batch_of(b"x" * (TEN_SECONDS_WORTH + 300))}, acks=acks)


class Client(RawClient):
    """A connection with its own client id."""

    def __init__(self, cluster: EmbeddedCluster, client_id: str, node: int = 0) -> None:
        super().__init__(address(cluster, node))
        self.client_id = client_id

    async def throttle_of_a_large_request(self, version: int = 12) -> int:
        response = await self.ask(large_request(), version)
        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0
        return response.throttle_time_ms


async def is_muted(client: RawClient, other: RawClient) -> bool:
    """Return True if a request stays unanswered while another client's requests are served."""
    wanted = MetadataRequest(topics=[])
    answer = asyncio.ensure_future(client.ask(wanted, 12))
    for _ in range(3):
        await other.ask(wanted, 12)
    muted = not answer.done()
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    return muted


# Arithmetic


def throttles(limit: float, *recorded: tuple[float, float]) -> list[float]:
    rate = Rate()
    found = []
    for now, value in recorded:
        rate.record(value, now)
        found.append(round(rate.throttle(limit, now), 6))
    return found


@pytest.mark.promise(
    "Test clusters", "quotas: the embedded broker answers first, then mutes the connection (KIP-219)"
)
@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        # Ten windows count as elapsed, so ten seconds' worth of bytes is within the quota.
        ([(0.0, 10_000)], [0.0]),
        ([(0.0, 20_000)], [10.0]),
        # The values within a window are added up.
        ([(0.0, 6_000), (0.5, 6_000)], [0.0, 1.5]),
        # Each further window extends the period of the mean, up to eleven windows.
        ([(0.0, 10_000), (1.0, 1_000)], [0.0, 1.0]),
        ([(0.0, 10_000), (10.5, 1_000)], [0.0, 0.5]),
        # Values older than eleven windows are dropped.
        ([(0.0, 20_000), (11.0, 10_000)], [10.0, 0.0]),
        ([(0.0, 20_000), (500.0, 20_000)], [10.0, 10.0]),
    ],
)
def test_rates_are_kafkas_means_over_eleven_sampled_windows(recorded, expected):
    assert throttles(1_000, *recorded) == expected


def test_a_client_that_waits_out_its_throttle_is_within_the_quota_again():
    rate = Rate()
    rate.record(15_000, 0.0)
    wait = rate.throttle(1_000, 0.0)
    rate.record(0, wait)

    assert wait == 5.0
    assert throttles(1_000, (0.0, 15_000), (10.0 + wait, 0.0))[-1] == 0.0


def test_request_time_never_mutes_for_longer_than_a_window():
    quotas = Quotas()
    quotas.set("a", Quota(request_percentage=1.0))

    assert quotas.throttle(0, "a", size=0, seconds=0.1, now=0.0) == 0.0
    assert quotas.throttle(0, "a", size=0, seconds=0.04, now=0.0) == pytest.approx(1.0)
    assert quotas.throttle(0, "a", size=0, seconds=100.0, now=0.0) == 1.0


def test_the_longer_of_the_two_throttles_counts():
    quotas = Quotas()
    quotas.set("a", Quota(producer_byte_rate=1_000, request_percentage=1.0))

    assert quotas.throttle(0, "a", size=10_500, seconds=100.0, now=0.0) == 1.0
    assert quotas.throttle(0, "a", size=10_000, seconds=0.0, now=0.0) == 10.5


def test_each_client_is_counted_separately_on_each_broker():
    quotas = Quotas()
    quotas.set(None, Quota(producer_byte_rate=1_000))
    quotas.set("large", Quota(producer_byte_rate=100_000))

    asked = [(0, "a"), (0, "a"), (0, "b"), (1, "a"), (0, "large"), (0, "large")]
    found = [quotas.throttle(node, client, size=10_000, seconds=0, now=0.0) for node, client in asked]

    assert found == [0.0, 10.0, 0.0, 0.0, 0.0, 0.0]


def test_an_invalid_quota_is_rejected():
    with pytest.raises(ValueError, match=r"producer_byte_rate=0 must be above 0"):
        EmbeddedCluster().set_quota("a", producer_byte_rate=0)
    with pytest.raises(ValueError, match=r"request_percentage=-1 must be above 0"):
        EmbeddedCluster().set_quota(request_percentage=-1)


@pytest.mark.parametrize(("raises", "seconds"), [(False, 4.0), (True, 5.0)])
async def test_only_the_time_that_a_request_runs_is_its_request_time(raises, seconds):
    now = 0.0

    async def works() -> str:
        nonlocal now
        now += 2.0
        try:
            await waits
        except ZeroDivisionError:
            now += 1.0
        now += 2.0
        return "done"

    waits = asyncio.get_running_loop().create_future()
    timed = Timed(works(), lambda: now)
    task = asyncio.ensure_future(awaited(timed))
    await asyncio.sleep(0)
    now += 100.0
    if raises:
        waits.set_exception(ZeroDivisionError())
    else:
        waits.set_result(None)

    assert await task == "done"
    assert timed.seconds == seconds


async def awaited(timed: Timed[str]) -> str:
    return await timed


# On a connection


@pytest.mark.promise(
    "Test clusters", "quotas: the embedded broker answers first, then mutes the connection (KIP-219)"
)
async def test_a_client_above_its_byte_rate_is_answered_at_once_and_then_muted():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.set_quota("fast", producer_byte_rate=BYTE_RATE)
        async with Client(cluster, "fast") as fast, Client(cluster, "other") as other:
            assert await other.throttle_of_a_large_request() == 0
            async with Client(cluster, "third") as third:
                assert not await is_muted(other, third)

            assert 30 <= await fast.throttle_of_a_large_request() <= 60
            loop = asyncio.get_running_loop()
            answered = loop.time()
            await fast.metadata("t")
            assert loop.time() - answered >= 0.025
            # The rate is measured per client, not per connection.
            async with Client(cluster, "fast") as again:
                assert await again.throttle_of_a_large_request() > 9_000
                assert await is_muted(again, other)


async def test_a_client_that_does_not_wait_for_answers_is_also_muted():
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.set_quota(producer_byte_rate=BYTE_RATE)
        async with Client(cluster, "fast") as fast, Client(cluster, "other") as other:
            for _ in range(2):
                fast.send(large_request(acks=0), 12)
            await asyncio.wait_for(cluster.wait_for_requests(ApiKey.PRODUCE, 2), 10_000 * MS)

            assert await is_muted(fast, other)


@pytest.mark.parametrize("version", [3, 5, 8, 12])
async def test_every_produce_version_returns_the_throttle_time(version):
    async with EmbeddedCluster(topics={"t": 1}) as cluster, Client(cluster, "a") as client:
        cluster.set_quota("a", producer_byte_rate=100)

        assert await client.throttle_of_a_large_request(version) > 900_000


async def test_request_time_includes_the_work_of_the_broker_but_not_waits():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, Client(cluster, "a") as client:
        cluster.set_quota("a", request_percentage=0.1 * MS * 1000)
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = FetchRequest.FetchTopic(topic="t", partitions=[wanted])
        waits = FetchRequest(max_wait_ms=int(50 * MS * 1000), min_bytes=1, topics=[topic])
        patient = await client.ask(waits, 12)
        assert isinstance(patient, FetchResponse)
        assert patient.throttle_time_ms == 0

        cluster.faults.add(ApiKey.METADATA, delay=50 * MS)
        assert (await client.metadata("t")).throttle_time_ms == 1000


async def test_a_muted_connection_ends_with_the_cluster():
    before = asyncio.all_tasks()
    async with EmbeddedCluster(topics={"t": 1}) as cluster:
        cluster.set_quota(producer_byte_rate=1)
        client = Client(cluster, "a")
        await client.__aenter__()
        await client.throttle_of_a_large_request()
    assert await client.is_closed()
    await client.__aexit__()

    assert asyncio.all_tasks() == before
