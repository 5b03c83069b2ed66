"""Scenarios of the fault catalogue: connections (C...), frames and protocol (P...)."""

from __future__ import annotations

import asyncio
from typing import Any

from aioproducer import Producer
from aioproducer.errors import BootstrapError
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.testing.simulation.network import Latency
from tests.campaigns.simulation.history import Told
from tests.campaigns.simulation.plan import ACKS_0, ACKS_1
from tests.campaigns.simulation.stage import Stage, scenario

PRODUCE = ApiKey.PRODUCE


def _rename(stage: Stage, *names: str, **more: Any) -> Producer:
    """Return another producer whose bootstrap addresses are these names, each with the first broker's port."""
    servers = [f"{name}:{stage.port()}" for name in names]
    producer = stage.world.producer("other", bootstrap_servers=servers, **more)
    return producer


@scenario("C1", starts=False)
async def no_broker_listens_at_the_start(stage: Stage) -> None:
    stage.stop(0)
    began = stage.loop.time()

    error = await stage.raises(BootstrapError, stage.producer.start())

    assert f"127.0.0.1:{stage.port()}" in str(error)
    assert "refused" in str(error) or "Connect call failed" in str(error)
    assert 4.5 < stage.loop.time() - began < 6


@scenario("C2")
async def the_first_bootstrap_server_is_down_the_second_is_up(stage: Stage) -> None:
    producer = stage.world.producer("other", bootstrap_servers=["127.0.0.1:1", f"127.0.0.1:{stage.port()}"])
    began = stage.loop.time()
    async with producer:
        assert stage.loop.time() - began < 1
        await stage.warm_up()


@scenario("C3")
async def a_name_that_does_not_exist_is_created(stage: Stage) -> None:
    stage.network.names["kafka"] = ()
    stage.world.later(2.0, lambda: stage.network.names.update(kafka=("127.0.0.1",)))
    began = stage.loop.time()
    async with _rename(stage, "kafka"):
        assert 2.0 <= stage.loop.time() - began < 3.5
    stage.network.names["kafka"] = ()
    error = await stage.raises(BootstrapError, _rename(stage, "kafka").start())
    assert "can't be resolved" in str(error)


@scenario("C4", brokers=2)
async def a_slow_name_server_does_not_delay_open_connections(stage: Stage) -> None:
    await stage.warm_up()
    stage.network.lookup_delay = 30.0
    before = stage.loop.time()
    await stage.delivered(await stage.send(20))
    assert stage.loop.time() - before < 1, "open connections need no lookups"
    stage.network.lookup_delay = 0.0


@scenario("C5", "C7")
async def the_first_address_of_a_name_is_dead_or_unreachable(stage: Stage) -> None:
    stage.network.names["kafka"] = ("10.0.0.1", "127.0.0.1")
    async with _rename(stage, "kafka"):
        pass
    stage.network.names["kafka"] = ("::1", "127.0.0.1")
    began = stage.loop.time()
    async with _rename(stage, "kafka"):
        assert stage.loop.time() - began < 1


@scenario(
    "C8", socket_connection_setup_timeout_ms=1000, socket_connection_setup_timeout_max_ms=2000, starts=False
)
async def unanswered_connection_attempts_end_with_their_time_out(stage: Stage) -> None:
    stage.network.hold(stage.port())
    began = stage.loop.time()

    error = await stage.raises(BootstrapError, stage.producer.start())

    assert stage.loop.time() - began < 6
    assert "no connection within" in str(error)
    stage.network.release()


@scenario("C9", "M18", delivery_timeout_ms=60_000)
async def a_broker_that_refuses_connections_is_tried_less_and_less_often(stage: Stage) -> None:
    await stage.warm_up()
    before = stage.failed_connects
    stage.stop(0)
    records = await stage.send(5)
    await asyncio.sleep(20)
    tries = stage.failed_connects - before
    assert 20 <= tries <= 90, f"{tries} in 20 s with back-offs of 20 to 500 ms"
    await stage.start(0)
    await stage.delivered(records)


@scenario("C10", "C20")
async def the_broker_closes_an_idle_connection_as_we_write(stage: Stage) -> None:
    await stage.warm_up()
    for _ in range(10):
        stage.network.cut(stage.port())
        await asyncio.sleep(stage.random.uniform(0, 0.001))
        await stage.delivered(await stage.send(3))


@scenario("C11", max_request_size=1_048_576)
async def a_connection_is_cut_in_the_middle_of_a_request(stage: Stage) -> None:
    await stage.warm_up()
    stage.network.latency = Latency(0.001, 0.003)
    for _ in range(10):
        records = await stage.send(2, size=200_000)
        await asyncio.sleep(stage.random.uniform(0, 0.02))
        stage.network.cut(stage.port())
        await stage.delivered(records)


@scenario("C12", "M4")
async def the_answer_is_lost_after_the_append(stage: Stage) -> None:
    await stage.warm_up()
    for _ in range(5):
        stage.faults.add(PRODUCE, drop_after_append=True, skip=stage.random.randrange(5))
        records = await stage.send(8)
        await stage.delivered(records)
        assert [sent.offset for sent in records] == sorted(sent.offset or 0 for sent in records)


@scenario("C13", "P6")
async def the_answer_is_cut_off_while_others_are_outstanding(stage: Stage) -> None:
    await stage.warm_up()
    for cut_at in range(0, 60, 7):
        stage.faults.add(PRODUCE, truncate=cut_at, skip=stage.random.randrange(3))
        await stage.delivered(await stage.send(6))


@scenario("C14", "C15", "C16", request_timeout_ms=500)
async def the_network_is_silent_in_one_direction_or_in_both(stage: Stage) -> None:
    await stage.warm_up()
    for requests, answers in ((True, True), (False, True), (True, False)):
        stage.network.hold(stage.port(), requests=requests, answers=answers)
        records = await stage.send(5)
        await asyncio.sleep(1.0)
        assert stage.history.sent[-1].told is Told.NOTHING
        stage.network.release()
        await stage.delivered(records)


@scenario("C27", brokers=3, partitions=3, request_timeout_ms=2000, delivery_timeout_ms=30_000)
async def the_clients_own_network_is_gone_for_a_minute(stage: Stage) -> None:
    await stage.warm_up(3)
    for node in range(3):
        stage.network.hold(stage.port(node))
    records = [(await stage.send(partition=index % 3))[0] for index in range(9)]
    await asyncio.sleep(40)
    told = await stage.told(records)
    assert Told.ACKNOWLEDGED not in told
    later = await stage.send(3)
    await asyncio.sleep(20)
    assert {sent.told for sent in later} == {Told.NOTHING}
    stage.network.release()
    await stage.delivered(later)
    await stage.delivered([(await stage.send(partition=index))[0] for index in range(3)])


@scenario("C17", request_timeout_ms=1000)
async def an_answer_comes_a_byte_at_a_time(stage: Stage) -> None:
    await stage.warm_up()
    stage.faults.add(PRODUCE, trickle=1, trickle_pause=1.0)
    began = stage.loop.time()
    await stage.delivered(await stage.send())
    assert 1.0 <= stage.loop.time() - began < 3, "the time-out is for the whole request, not for each read"


@scenario("C18", max_request_size=1_048_576, buffer_memory=2_000_000)
async def a_broker_reads_nothing_and_the_buffer_stays_within_its_limit(stage: Stage) -> None:
    await stage.warm_up()
    stage.cluster.freeze_broker(0)
    records = await stage.send(18, size=100_000)
    began = stage.loop.time()
    (refused,) = await stage.send(size=500_000)
    assert (refused.told, refused.buffered_at) == (Told.NOT_PERSISTED, None)
    assert 4.9 < stage.loop.time() - began < 5.1, "max_block_ms"
    assert sum(end.get_write_buffer_size() for end in stage.network.open_clients) < 2_000_000
    stage.cluster.thaw_broker(0)
    await stage.delivered(records)


@scenario("C19")
async def a_slow_network_is_filled_by_five_batches_in_flight(stage: Stage) -> None:
    await stage.warm_up()
    stage.network.latency = Latency(0.05, 0.05)
    began = stage.loop.time()
    await stage.delivered(await stage.send(50))
    assert stage.loop.time() - began < 50 / 4.5 * 0.1 + 0.2, "at least 4.5 batches in each round trip"


@scenario("C26")
async def thirty_producers_do_not_come_back_at_once(stage: Stage) -> None:
    now_ms = int(stage.world.wall_time() * 1000)
    producers = [stage.world.producer(f"p{number}") for number in range(30)]
    for producer in producers:
        await producer.start()
        await producer.send_and_wait("t", b"-1", partition=0, timestamp_ms=now_ms)
    stage.stop(0)
    deliveries = [await producer.send("t", b"-1", partition=0, timestamp_ms=now_ms) for producer in producers]
    await asyncio.sleep(3)
    await stage.start(0)
    times = []
    before = stage.cluster.broker(0).connection_count
    for _ in range(60):
        await asyncio.sleep(0.01)
        count = stage.cluster.broker(0).connection_count
        times.append(count - before)
        before = count
    for producer in producers:
        await producer.close(timeout=5)
    assert all(delivery.done() for delivery in deliveries)
    # This history does not distinguish them, so their records are removed again.
    stage.cluster.delete_topic("t")
    stage.history.incarnations.clear()
    assert max(times) < 20, times


@scenario("P1")
async def an_answer_has_the_id_of_another_request(stage: Stage) -> None:
    await stage.warm_up()
    connections = stage.connections
    for _ in range(4):
        stage.faults.add(PRODUCE, wrong_correlation_id=True, skip=stage.random.randrange(4))
        await stage.delivered(await stage.send(6))
    assert stage.connections == connections + 4, "each of these connections is replaced"


@scenario("P15", partitions=3)
async def an_answer_leaves_a_partition_out(stage: Stage) -> None:
    await stage.warm_up(3)
    for _ in range(4):
        stage.faults.add(PRODUCE, omit_partitions=True, topic="t", partition=1)
        records = [sent for index in range(3) for sent in await stage.send(2, partition=index)]
        await stage.delivered(records)


@scenario("P18", starts=False)
async def api_versions_is_refused_again_and_again(stage: Stage) -> None:
    stage.faults.add(ApiKey.API_VERSIONS, error=Code.UNSUPPORTED_VERSION, count=1000)

    await stage.raises(BootstrapError, stage.producer.start())

    asked = stage.requests(ApiKey.API_VERSIONS)
    assert asked < 150, f"{asked} requests in 5 s: two for each connection, and back-off between them"


@scenario("P19", brokers=2)
async def a_broker_comes_back_as_an_older_one(stage: Stage) -> None:
    await stage.warm_up()
    for versions in ("2.8", "3.9", "2.1", "4.1"):
        for node in (0, 1):
            stage.stop(node)
            await asyncio.sleep(0.1)
            await stage.start(node, versions=versions)
        await stage.delivered(await stage.send(3))


@scenario("P21", kind=ACKS_0, brokers=2)
async def without_acknowledgements_an_error_shows_as_a_closed_connection(stage: Stage) -> None:
    await stage.warm_up()
    refreshes = stage.requests(ApiKey.METADATA)
    stage.cluster.move_leader("t", 0, 1)
    await stage.send(3)
    await asyncio.sleep(1)
    assert stage.requests(ApiKey.METADATA) > refreshes
    await stage.send(3)
    await asyncio.sleep(1)
    assert stage.requests(node=1) > 0, "the new leader was not found"


@scenario("P22", kind=ACKS_0, versions="azure-event-hubs")
async def without_acknowledgements_the_broker_answers_anyway(stage: Stage) -> None:
    for _ in range(5):
        await stage.send(3)
        await asyncio.sleep(0.5)
    assert len(stage.cluster.records("t")) >= 3


@scenario("P23", "P24")
async def a_throttled_producer_waits_and_sends_nothing_twice(stage: Stage) -> None:
    await stage.warm_up()
    stage.faults.add(PRODUCE, throttle_ms=3000)
    await stage.delivered(await stage.send())
    began, requests = stage.loop.time(), stage.requests()
    await stage.delivered(await stage.send(3))
    assert 2.9 < stage.loop.time() - began < 3.5
    assert stage.requests() == requests + 3


@scenario("C25", kind=ACKS_1, brokers=2)
async def the_leader_is_at_another_address_after_a_restart(stage: Stage) -> None:
    await stage.warm_up()
    broker = stage.cluster.broker(0)
    stage.stop(0)
    await asyncio.sleep(0.1)
    await broker.wait_stopped()
    broker.port = 0  # another port is chosen
    await stage.start(0)
    stage.cluster.move_leader("t", 0, 0)
    await stage.delivered(await stage.send(3))
    assert stage.requests(node=0) > 0
