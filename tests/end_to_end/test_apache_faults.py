"""Brokers of a real cluster are killed, frozen or restarted under load: nothing is lost, duplicated or reordered.

confluent-kafka, aiokafka and, on the disk of every broker, Kafka's own tool read the records that the producer reported
as written."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator

import pytest

from aioproducer import Outcome, Producer
from aioproducer.testing.apache import kafka
from aioproducer.testing.apache.kafka import ApacheKafka
from tests.conftest import MS
from tests.support.apache_clusters import LEAN, NOTICES_SOON, running
from tests.support.apache_load import EVERYBODY, PARTITIONS, Victim, compare, leader_of_first, under_load

pytestmark = [pytest.mark.apache, pytest.mark.slow]

TOPICS = (
    "moved",
    "frozen",
    "unsure",
    "nodded-off",
    "nodded-off-unsure",
    "restarted",
    "cut-off",
    "killed",
    "later",
    "controlled",
)

QUICK = {**NOTICES_SOON, "auto.leader.rebalance.enable": False}


@pytest.fixture(scope="module", params=["4.3.1"])
def cluster(request) -> Iterator[ApacheKafka]:
    """Three brokers, and a topic for each test, because none can be created while a broker is down."""

    async def make_topics(kafka: ApacheKafka) -> None:
        for topic in TOPICS:
            await kafka.create_topic(topic, partitions=PARTITIONS, replication_factor=3)

    kafka = ApacheKafka(3, request.param, config=QUICK, jvm_args=LEAN)
    with running(kafka, make_topics, request=request):
        yield kafka


on_both = pytest.mark.parametrize("cluster", ["4.3.1", "3.9.2"], indirect=True)


@pytest.fixture
def report(capsys, request) -> Callable[[str], None]:
    """Writes a line that is visible even if pytest captures output."""

    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{request.node.name}: {line}\n")

    return write


@pytest.mark.promise("Test clusters", "`ApacheKafka` is a real broker from pip alone")
async def test_leadership_moves_when_one_of_three_brokers_is_killed(cluster):
    leader = await cluster.leader("moved", 0)
    assert {await cluster.leader("moved", partition) for partition in range(3)} == {0, 1, 2}

    await cluster.kill(leader)
    async with asyncio.timeout(60_000 * MS):
        while await cluster.leader("moved", 0) in (leader, -1):  # noqa: ASYNC110  # brokers set no events
            await asyncio.sleep(50 * MS)
    await cluster.start_broker(leader)

    assert {await cluster.leader("moved", partition) for partition in range(3)} <= {0, 1, 2}
    assert all(node.pid for node in cluster.nodes)


@pytest.mark.promise(
    "As a whole",
    "three real brokers: while a leader is frozen, no acknowledged record is lost, duplicated or reordered",
)
@on_both
async def test_frozen_leader_costs_no_record(cluster, report):
    async with under_load(cluster, "frozen") as load:
        victim = await leader_of_first(cluster, "frozen")
        cluster.pause(victim.node_id)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
        # The broker resumes as a deposed leader, with unread requests in its sockets.
        cluster.resume(victim.node_id)
    counts = await compare(cluster, "frozen", load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert counts == {"acknowledged": len(load.sent)}
    assert recovery.is_quick
    assert load.errors["RequestTimedOutError"] > 0


@pytest.mark.promise(
    "As a whole",
    "three real brokers: while a leader is frozen, no acknowledged record is lost, duplicated or reordered",
)
async def test_frozen_leader_costs_only_records_that_are_reported(cluster, report):
    topic = "unsure"
    async with under_load(cluster, topic, request_timeout_ms=1000, delivery_timeout_ms=1500) as load:
        victim = await leader_of_first(cluster, topic)
        cluster.pause(victim.node_id)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
        cluster.resume(victim.node_id)
    counts = await compare(cluster, topic, load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert counts[Outcome.UNKNOWN.value] > 0
    assert counts[Outcome.NOT_PERSISTED.value] > 0
    assert recovery.is_quick


@pytest.mark.promise(
    "As a whole",
    "three real brokers: while a leader is frozen, no acknowledged record is lost, duplicated or reordered",
)
@pytest.mark.parametrize(
    ("topic", "delivery_timeout_ms"), [("nodded-off", 60_000), ("nodded-off-unsure", 1000)]
)
async def test_frozen_leader_that_is_not_replaced_reads_old_requests_when_it_resumes(
    cluster, report, topic, delivery_timeout_ms
):
    async with under_load(
        cluster, topic, request_timeout_ms=700, delivery_timeout_ms=delivery_timeout_ms
    ) as load:
        victim = await leader_of_first(cluster, topic)
        cluster.pause(victim.node_id)
        load.struck(victim)
        # Requests time out and are sent again on other connections, but the broker's session lasts: no other leader
        # is elected, and the requests of the old connections are read before, between or after the others.
        await asyncio.sleep(1700 * MS)
        cluster.resume(victim.node_id)
        recovery = await load.until_recovered(cluster, victim)
    counts = await compare(cluster, topic, load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert load.errors["RequestTimedOutError"] > 0
    if delivery_timeout_ms == 60_000:
        assert counts == {"acknowledged": len(load.sent)}
    else:
        assert counts[Outcome.UNKNOWN.value] > 0


@pytest.mark.promise(
    "Test clusters",
    "three real brokers: restarting all three loses no acknowledged record, duplicates none and keeps the "
    "order",
)
@pytest.mark.parametrize(("topic", "kill"), [("restarted", False), ("cut-off", True)])
async def test_restart_of_the_whole_cluster_costs_no_record(cluster, report, topic, kill):
    before = {node.pid for node in cluster.nodes}
    async with under_load(cluster, topic) as load:
        load.struck(EVERYBODY)
        await cluster.restart(kill=kill)
        recovered = await load.until_all_partitions_recovered()
    counts = await compare(cluster, topic, load)

    report(f"recovered after {recovered:.2f} s; {dict(counts)}; {load.errors}")
    assert counts == {"acknowledged": len(load.sent)}
    assert load.errors["BrokerConnectionError"] > 0
    assert before.isdisjoint(node.pid for node in cluster.nodes)


async def test_broker_without_a_quorum_of_controllers_is_killed_by_restart(cluster, monkeypatch, caplog):
    monkeypatch.setattr(kafka, "_QUORUM_WAIT", 2000 * MS)
    for node in (0, 1):
        await cluster.kill(node)

    await cluster.restart()

    assert all(node.pid for node in cluster.nodes)
    assert "killing broker 2" in caplog.text
    assert {await cluster.leader("later", partition) for partition in range(3)} <= {0, 1, 2}


@pytest.mark.promise(
    "As a whole",
    "three real brokers: killing a leader loses no acknowledged record, duplicates none and keeps the order",
)
@on_both
async def test_killed_leader_costs_no_record(cluster, report):
    async with under_load(cluster, "killed") as load:
        victim = await leader_of_first(cluster, "killed")
        await cluster.kill(victim.node_id)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
    # The first address of another producer is that of the dead broker.
    servers = cluster.bootstrap_servers.split(",")
    servers.insert(0, servers.pop(victim.node_id))
    async with Producer(",".join(servers), request_timeout_ms=2000) as producer:
        later = await producer.send_and_wait("later", b"v")
    # The broker returns with its own records, and fetches those of the others.
    await cluster.start_broker(victim.node_id)
    counts = await compare(cluster, "killed", load)

    report(f"{recovery}; {dict(counts)}; {load.errors}")
    assert counts == {"acknowledged": len(load.sent)}
    assert recovery.is_quick
    assert load.errors["BrokerConnectionError"] > 0
    assert later.offset == 0


async def test_killed_controller_costs_no_record(cluster, report):
    """Another controller is elected while records are sent. It gives the dead broker's partitions new leaders."""
    status = await cluster.run_tool(
        "org.apache.kafka.tools.MetadataQuorumCommand",
        *("--bootstrap-server", cluster.bootstrap_servers, "describe", "--status"),
    )
    controller = int(re.search(r"LeaderId:\s+(\d+)", status)[1])
    async with under_load(cluster, "controlled") as load:
        leaders = [await cluster.leader("controlled", partition) for partition in range(PARTITIONS)]
        led = {partition for partition in range(PARTITIONS) if leaders[partition] == controller}
        victim = Victim(controller, led)
        await cluster.kill(controller)
        load.struck(victim)
        recovery = await load.until_recovered(cluster, victim)
    await cluster.start_broker(controller)
    counts = await compare(cluster, "controlled", load)

    report(f"controller {controller}: {recovery}; {dict(counts)}; {load.errors}")
    assert counts == {"acknowledged": len(load.sent)}
    assert load.errors["BrokerConnectionError"] > 0
