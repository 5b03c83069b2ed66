"""Faults on three real brokers, judged by what confluent-kafka reads: a short version of `make chaos`.

Further tests check that the oracle finds broken promises, that the proxies do what they are asked, and that our
producer and Kafka's Java producer fence each other. A failure names the command that replays its schedule."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from aioproducer import Producer, ProducerFencedError, TransactionAbortableError
from aioproducer.testing.apache.kafka import ApacheKafkaError, ApacheKafkaMissingError
from aioproducer.testing.plugin import is_ci
from tests.campaigns.chaos.__main__ import Tally, report
from tests.campaigns.chaos.faults import ACKS, COPY, FAULTS, IDEMPOTENT, KINDS, UPGRADE, V1, V2
from tests.campaigns.chaos.history import ChaosHistory, Recovery
from tests.campaigns.chaos.oracle import RULES, WEAKER_RULES, ReadLogs, verdict
from tests.campaigns.chaos.plan import plan
from tests.campaigns.chaos.proxy import HOST, Network
from tests.campaigns.chaos.run import Result, play
from tests.campaigns.chaos.world import MADE_ANEW, STEADY
from tests.campaigns.simulation.history import Ended, Sent, SimulatedTransaction, Told
from tests.conftest import MS
from tests.support.apache_processes import command_lines, until
from tests.support.producing import within
from tests.support.read_back import LogRecord, read_back
from tests.support.resources import Sample, of_this_process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent

SHORT = {
    IDEMPOTENT: plan(
        IDEMPOTENT, 1, ("kill -9", "topic re-created", "partitions added", "cut after a Produce")
    ),
    V1: plan(V1, 1, ("coordinator killed in mid-commit", "half-open")),
    V2: plan(V2, 1, ("coordinator frozen in mid-commit", "cut after an EndTxn", "throttled")),
    # With this seed the upgrade comes first, so transactions of both levels are committed.
    UPGRADE: plan(UPGRADE, 2, ("transaction.version raised", "frozen", "answers lost")),
    # No leader is lost, so acks=1 keeps its promises.
    ACKS: plan(ACKS, 1, ("cut after a Produce", "answers lost")),
    COPY: plan(COPY, 1, ("kill -9", "cut after a Produce")),
}
"""The schedule of each kind of workload in every test run."""

OPENED_ONCE = 2
"""Sockets that libraries open once per process. A producer that left its connections open would add more."""


@pytest.mark.promise(
    "Simulation and fuzzing",
    "every promise is kept while three real brokers are killed, frozen, restarted and cut off, topics "
    "change, and transactions run with v1, v2 and an upgrade between them",
)
@pytest.mark.promise(
    "Simulation and fuzzing",
    "in `make chaos`, transactions include group offsets and records from other producers, a topic is copied "
    "exactly once by copiers that are replaced, and acks=0 and acks=1 keep their weaker promises",
)
@pytest.mark.apache
@pytest.mark.parametrize("kind", KINDS)
async def test_every_promise_is_kept_while_brokers_and_network_fail(kind):
    try:
        before = of_this_process(0)
        result = await play(SHORT[kind])
        after = of_this_process(0)
    except ApacheKafkaMissingError as error:
        if is_ci():
            raise
        pytest.skip(str(error))

    history = result.history
    assert not result.broken, str(result)
    assert set(history.fired) == set(SHORT[kind].among), "each fault occurred"
    assert sum(sent.told is Told.ACKNOWLEDGED for sent in history.sent) > 100
    levels = {IDEMPOTENT: set(), ACKS: set(), V1: {"v1"}, V2: {"v2"}, UPGRADE: {"v1", "v2"}, COPY: {"v2"}}
    assert set(history.levels) == levels[kind]
    assert history.copies is None or history.copies.total() > 100
    assert after.held["tasks"] == before.held["tasks"]
    assert after.held["sockets"] <= before.held["sockets"] + OPENED_ONCE


# The oracle


@dataclass
class MadeUp:
    """An invented run and its logs: for each topic, the number of the record at each offset of partition 0."""

    history: ChaosHistory
    logs: dict[str, dict[int, int]]
    hidden: set[int]
    """Numbers that read_committed consumers do not see."""

    def verdict(self) -> list[str]:
        read = ReadLogs(self._read(set()), self._read(self.hidden))
        return verdict(self.history, read)

    def _read(self, hidden: set[int]) -> dict[str, dict[int, list[LogRecord]]]:
        return {
            topic: {
                0: [
                    LogRecord(0, offset, 0, 0, None, b"%d filler" % number, ())
                    for offset, number in sorted(log.items())
                    if number not in hidden
                ]
            }
            for topic, log in self.logs.items()
        }


def made_up() -> MadeUp:
    """A run in which every promise was kept."""
    history = ChaosHistory(V2, 0, made_anew_at=5.0)
    committed, aborted, unknown = (
        SimulatedTransaction(number, ended)
        for number, ended in enumerate((Ended.COMMITTED, Ended.ABORTED, Ended.UNKNOWN))
    )
    history.transactions = [committed, aborted, unknown]
    history.owners = dict.fromkeys(range(3), "payer")
    committed.offset, aborted.offset, unknown.offset = 0, 1, 2
    history.positions = {"payer": 0}
    history.acks_of = {"acks=1": 1, "acks=0": 0}

    def sent(topic, transaction, told, offset, asked_at=1.0, producer="producer"):
        number = len(history.sent)
        task = -1 if transaction is None else transaction.number
        history.sent.append(
            Sent(
                *(number, producer, task, topic, 0, transaction, asked_at, asked_at + 1, asked_at + 2),
                **{"buffered_at": asked_at, "ended_at": asked_at + 1, "told": told, "offset": offset},
            )
        )

    sent(STEADY, None, Told.ACKNOWLEDGED, 0)
    sent(STEADY, None, Told.ACKNOWLEDGED, 1)
    sent(STEADY, None, Told.UNKNOWN, None)
    sent(STEADY, None, Told.NOT_PERSISTED, None)
    sent(STEADY, committed, Told.ACKNOWLEDGED, 3)
    sent(STEADY, committed, Told.ACKNOWLEDGED, 4)
    sent(STEADY, aborted, Told.ACKNOWLEDGED, 6)
    sent(STEADY, unknown, Told.ACKNOWLEDGED, 8)
    sent(STEADY, unknown, Told.ACKNOWLEDGED, 9)
    sent(MADE_ANEW, None, Told.ACKNOWLEDGED, 0, asked_at=4.0)
    sent(MADE_ANEW, None, Told.ACKNOWLEDGED, 0, asked_at=6.0)
    for offset in (10, 11):
        sent(STEADY, None, Told.ACKNOWLEDGED, offset, producer="acks=1")
    for _ in range(2):
        sent(STEADY, None, Told.ACKNOWLEDGED, None, producer="acks=0")
    history.copies = Counter([0, 1, 2, 4, 5, 7, 8, 11, 12, 13, 14])
    return MadeUp(
        history,
        {
            STEADY: {0: 0, 1: 1, 2: 2, 3: 4, 4: 5, 6: 6, 8: 7, 9: 8, 10: 11, 11: 12, 12: 13, 13: 14},
            MADE_ANEW: {0: 10},
        },
        hidden={6},
    )


def lost(run):
    del run.logs[STEADY][1]


def elsewhere(run):
    run.logs[STEADY][20] = run.logs[STEADY].pop(1)


def twice(run):
    run.logs[STEADY][20] = 1


def out_of_order(run):
    run.logs[STEADY][0], run.logs[STEADY][1] = 1, 0
    run.history.sent[0].offset, run.history.sent[1].offset = 1, 0


def not_persisted_and_there(run):
    run.logs[STEADY][20] = 3


def never_sent(run):
    run.logs[STEADY][20] = 99


def late(run):
    run.history.sent[0].ended_at = 30.0


def never_ended(run):
    run.history.sent[2].told, run.history.sent[2].ended_at = Told.NOTHING, None


def committed_in_part(run):
    run.hidden.add(5)


def aborted_and_visible(run):
    run.hidden.remove(6)


def unknown_in_part(run):
    run.hidden.add(7)


def left_open(run):
    run.history.transactions[1].ended = Ended.OPEN


def lost_from_the_new_log(run):
    run.logs[MADE_ANEW].clear()


def twice_in_the_new_log(run):
    run.logs[MADE_ANEW][1] = 10


def somewhere_else_in_its_input(run):
    run.history.positions["payer"] = 1


def copied_twice(run):
    run.history.copies[0] += 1


def not_copied(run):
    del run.history.copies[0]


def lost_with_acks_1(run):
    del run.logs[STEADY][10]


def out_of_order_with_acks_1(run):
    run.logs[STEADY][10], run.logs[STEADY][11] = 12, 11
    run.history.sent[11].offset, run.history.sent[12].offset = 11, 10


def twice_with_acks_0(run):
    run.logs[STEADY][20] = 13


def out_of_order_with_acks_0(run):
    run.logs[STEADY][12], run.logs[STEADY][13] = 14, 13


LIES: dict[Callable[[MadeUp], None], str] = {
    lost: "every_acknowledged_record_is_in_the_log",
    elsewhere: "every_acknowledged_record_is_in_the_log",
    twice: "nothing_is_there_twice",
    out_of_order: "order_is_kept",
    not_persisted_and_there: "nothing_not_persisted_is_there",
    never_sent: "nothing_is_there_that_was_never_sent",
    late: "every_call_and_delivery_ends_in_time",
    never_ended: "every_call_and_delivery_ends_in_time",
    committed_in_part: "transactions_are_visible_as_told",
    aborted_and_visible: "transactions_are_visible_as_told",
    unknown_in_part: "transactions_are_visible_as_told",
    left_open: "every_transaction_was_ended",
    lost_from_the_new_log: "every_acknowledged_record_is_in_the_log",
    twice_in_the_new_log: "nothing_is_there_twice",
    somewhere_else_in_its_input: "each_group_is_where_its_last_commit_left_it",
    copied_twice: "every_record_is_copied_once",
    not_copied: "every_record_is_copied_once",
    lost_with_acks_1: "with_acks_1_only_a_lost_leader_loses_records",
    out_of_order_with_acks_1: "with_acks_1_only_a_lost_leader_loses_records",
    twice_with_acks_0: "with_acks_0_nothing_is_sent_twice",
    out_of_order_with_acks_0: "with_acks_0_nothing_is_sent_twice",
}
"""Ways in which a run can be wrong, and the rule that must report each."""


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the oracle of `make chaos` finds broken promises, and a seed is one plan that one command replays",
)
def test_the_oracle_of_chaos_accepts_a_correct_run():
    assert made_up().verdict() == []


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the oracle of `make chaos` finds broken promises, and a seed is one plan that one command replays",
)
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_the_oracle_of_chaos_reports(lie):
    run = made_up()

    lie(run)

    assert LIES[lie] in {sentence.partition(":")[0] for sentence in run.verdict()}


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the oracle of `make chaos` finds broken promises, and a seed is one plan that one command replays",
)
def test_each_rule_of_chaos_has_a_lie_that_it_reports():
    assert set(LIES.values()) == {rule.__name__ for rule in (*RULES, *WEAKER_RULES)}


@pytest.mark.promise(
    "Simulation and fuzzing",
    "in `make chaos`, transactions include group offsets and records from other producers, a topic is copied "
    "exactly once by copiers that are replaced, and acks=0 and acks=1 keep their weaker promises",
)
@pytest.mark.parametrize("lie", [lost_with_acks_1, out_of_order_with_acks_1], ids=lambda lie: lie.__name__)
def test_with_acks_1_a_lost_leader_may_lose_records(lie):
    run = made_up()
    run.history.copies = None
    run.history.fired["kill -9"] = 1

    lie(run)

    assert run.verdict() == []


@pytest.mark.promise(
    "Simulation and fuzzing",
    "in `make chaos`, transactions include group offsets and records from other producers, a topic is copied "
    "exactly once by copiers that are replaced, and acks=0 and acks=1 keep their weaker promises",
)
def test_with_acks_0_records_may_be_lost_and_a_resumed_broker_may_reorder_them():
    run = made_up()
    run.history.copies = None
    run.history.fired["frozen"] = 1

    out_of_order_with_acks_0(run)
    del run.logs[STEADY][12]

    assert run.verdict() == []
    assert run.history.lost == {"acks=0": 1, "acks=1": 0}


def test_records_of_a_deleted_topic_may_be_lost_and_later_ones_may_not():
    run = made_up()
    run.history.made_anew_at = 3.0

    [sentence] = run.verdict()

    assert "record 9 for made-anew-0" in sentence


# Plans and the report


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the oracle of `make chaos` finds broken promises, and a seed is one plan that one command replays",
)
def test_a_seed_is_one_plan_with_each_fault_once():
    for kind in KINDS:
        for seed in range(20):
            struck = [name for names in plan(kind, seed).rounds for name in names]
            assert sorted(struck) == sorted(name for name in FAULTS if FAULTS[name].is_for(kind))
            assert plan(kind, seed) == plan(kind, seed)
    assert plan(IDEMPOTENT, 1).rounds != plan(IDEMPOTENT, 2).rounds
    assert {plan(V1, seed).version for seed in (1, 2)} == {"3.9.2", "4.3.1"}


def test_the_short_schedules_contain_most_faults():
    untried = set(FAULTS) - {name for which in SHORT.values() for name in which.among}

    assert untried == {"rolling restart", "two of three down"}, "only slow faults are left to `make chaos`"


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the oracle of `make chaos` finds broken promises, and a seed is one plan that one command replays",
)
def test_the_report_has_counts_times_and_the_command_that_plays_a_failure_again():
    which = plan(V2, 7, ("frozen",))
    history = made_up().history
    history.fired.update(["frozen"] * 3)
    history.recoveries.append(Recovery(("frozen",), silence=4.2, recovered=0.7))
    tally = Tally()

    tally.add(Result(which, history, ["the sky fell"]))
    told = report(tally, 60)

    assert "15 records: 13 acknowledged, 1 not persisted, 1 unknown" in told
    assert "| frozen | 3 | 4.2 s, at most 4.2 s | 0.7 s, at most 0.7 s |" in told
    assert "- the sky fell" in told
    assert (
        "python -m tests.campaigns.chaos --kind 'transactions v2' --seed 7 --schedules 1 --fault 'frozen'"
        in told
    )
    assert "kill -9" in told.partition("never occurred: ")[2]


def test_growth_from_schedule_to_schedule_is_a_failure():
    tally = Tally()
    for number in range(20):
        tally.samples.append(Sample(60.0 * number, {"sockets": 10 + number // 4, "tasks": 3}))

    told = report(tally, 60)

    assert "| sockets | 10 | 14 | +14.12 |" in told
    assert "| tasks | 3 | 3 | +0.00 |" in told
    assert "failures: 1\nsteady growth: sockets: 3.5 more" in told
    assert tally.grown


def test_growth_during_the_warm_up_is_not_a_failure():
    tally = Tally()
    for number in range(20):
        tally.samples.append(Sample(60.0 * number, {"sockets": 10 if number < 4 else 30 + number % 2}))

    assert not tally.grown
    assert "failures: 0" in report(tally, 60)


def test_a_long_run_counts_the_memory_that_is_allocated_not_the_pages_that_stay_resident():
    program = """
import asyncio, sys
from tests.support.resources import of_this_process, use_malloc_only

use_malloc_only()

async def memory():
    return of_this_process(0).held["MiB of memory"]

before = asyncio.run(memory())
many = [bytes(100_000) for _ in range(100)]
with_many = asyncio.run(memory())
scattered = [bytearray(500) for _ in range(100_000)]
few = scattered[::50]  # each keeps its page
del many, scattered
print(sys.argv[1], round(with_many - before), round(asyncio.run(memory()) - before))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}

    told = subprocess.run(
        [sys.executable, "-c", program, "argument"], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    assert (told.stdout, told.stderr) == ("argument 10 1\n", "")


@pytest.mark.promise(
    "Simulation and fuzzing", "Ctrl-C ends `make chaos` with its report and without its brokers"
)
@pytest.mark.apache
def test_ctrl_c_ends_chaos_with_its_report_and_without_its_brokers(tmp_path):
    chaos = subprocess.Popen(
        [sys.executable, "-m", "tests.campaigns.chaos", "--kind", IDEMPOTENT],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not any("kafka.Kafka" in line for line in command_lines(str(tmp_path)).values()):
            assert chaos.poll() is None, chaos.communicate()
            time.sleep(100 * MS)
        chaos.send_signal(signal.SIGINT)
        told, errors = chaos.communicate(timeout=60_000 * MS)
    finally:
        chaos.kill()

    assert chaos.returncode == 0, errors
    assert "0 schedules" in told
    assert "failures: 0" in told
    assert not command_lines(str(tmp_path))
    assert not list(tmp_path.iterdir())


# The proxies


@asynccontextmanager
async def proxied():
    """A network in front of one "broker" that echoes every frame, and the frames that it received."""
    got: list[bytes] = []

    async def say_again(reader, writer):
        try:
            while True:
                size = await reader.readexactly(4)
                got.append(await reader.readexactly(int.from_bytes(size)))
                writer.write(size + got[-1])
        except (OSError, EOFError):
            writer.close()

    server = await asyncio.start_server(say_again, HOST, 0)
    try:
        async with Network(1) as network:
            network.lead_to([server.sockets[0].getsockname()[1]])
            yield network, got
    finally:
        server.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)


def frame(api_key, body=b""):
    content = api_key.to_bytes(2) + body
    return len(content).to_bytes(4) + content


async def test_a_cut_comes_after_the_request_and_before_its_answer():
    async with proxied() as (network, got):
        reader, writer = await asyncio.open_connection(HOST, network.proxies[0].port)
        trap = network.lay(26)
        writer.write(frame(0))
        assert await within(2, reader.readexactly(6)) == frame(0)

        writer.write(frame(26))
        assert await within(2, trap.sprung) == 0

        with pytest.raises((OSError, EOFError)):
            await within(2, reader.readexactly(6))
        assert got == [frame(0)[4:], frame(26)[4:]]
        writer.close()


async def test_a_trap_lets_the_skipped_requests_pass():
    async with proxied() as (network, _):
        reader, writer = await asyncio.open_connection(HOST, network.proxies[0].port)
        trap = network.lay(26, skip=1)

        writer.write(frame(26))
        assert await within(2, reader.readexactly(6)) == frame(26)
        assert not trap.is_used_up

        writer.write(frame(26))
        with pytest.raises((OSError, EOFError)):
            await within(2, reader.readexactly(6))
        assert trap.is_used_up
        writer.close()


@pytest.mark.parametrize("answers_only", [False, True])
async def test_a_half_open_connection_stays_open_and_silent_while_new_ones_work(answers_only):
    async with proxied() as (network, got):
        address = HOST, network.proxies[0].port
        reader, writer = await asyncio.open_connection(*address)
        writer.write(frame(0))
        await within(2, reader.readexactly(6))

        assert network.proxies[0].fall_silent(answers_only=answers_only) == 1
        writer.write(frame(1))

        fresh, to_fresh = await asyncio.open_connection(*address)
        to_fresh.write(frame(2))
        assert await within(2, fresh.readexactly(6)) == frame(2)
        with pytest.raises(TimeoutError):
            await within(0.05, reader.read(1))
        assert (frame(1)[4:] in got) is answers_only
        assert network.connections == 2
        writer.close()
        to_fresh.close()
        await until(lambda: not network.connections)


async def test_a_throttled_proxy_is_slow_and_loses_nothing():
    async with proxied() as (network, _):
        reader, writer = await asyncio.open_connection(HOST, network.proxies[0].port)
        network.proxies[0].rate = 20_000
        sent = frame(0, bytes(range(250)) * 20)
        began = asyncio.get_running_loop().time()

        writer.write(sent)
        assert await within(10, reader.readexactly(len(sent))) == sent

        assert asyncio.get_running_loop().time() - began > 0.2
        writer.close()


async def test_a_proxy_that_forwards_to_a_closed_connection_ends_as_after_a_reset():
    async with proxied() as (network, _):
        _, writer = await asyncio.open_connection(HOST, network.proxies[0].port)
        await until(lambda: network.connections == 1)
        writer.transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        with pytest.raises(ConnectionResetError):
            await network.proxies[0]._forward(b"late", writer)


@pytest.mark.parametrize("turns", range(8))
async def test_a_proxy_that_closes_while_it_accepts_a_connection_leaves_none_open(turns):
    """The proxy is closed `turns` turns of the loop after a client has connected."""
    async with proxied() as (network, _):
        with socket.create_connection((HOST, network.proxies[0].port)) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await network.proxies[0].close()

            client.settimeout(2_000 * MS)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


async def test_a_proxy_hangs_up_while_its_broker_is_down():
    async with proxied() as (network, _):
        network.lead_to([1])

        reader, writer = await asyncio.open_connection(HOST, network.proxies[0].port)

        with pytest.raises((OSError, EOFError)):
            await within(2, reader.readexactly(1))
        writer.close()


# Kafka's own producer


def of_java(kafka, name, *, records, transaction_ms):
    """Run Kafka's performance tool, whose producer sends numbers from 0, in transactions of this duration."""
    return kafka.run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", name, "--num-records", str(records), "--throughput", "50", "--payload-monotonic"),
        *("--transactional-id", name, "--transaction-duration-ms", str(transaction_ms)),
        *("--producer-props", f"bootstrap.servers={kafka.bootstrap_servers}"),
    )


async def length(kafka, topic):
    """Return the current length of a log with one partition; a producer may still be writing to it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    place = TopicPartition(topic, 0)
    found = admin.list_offsets({place: OffsetSpec.latest()})
    return (await asyncio.to_thread(found[place].result, 30)).offset


@pytest.mark.promise("Simulation and fuzzing", "Kafka's Java producer and ours fence each other")
@pytest.mark.apache
async def test_fencing_between_aioproducer_and_the_java_producer(each_kafka):
    kafka, name = each_kafka, f"java-{uuid4().hex[:8]}"
    await kafka.create_topic(name)

    async with Producer(kafka.bootstrap_servers, transactional_id=name, max_block_ms=20_000) as ours:
        await ours.begin_transaction()
        await ours.send_and_wait(name, b"ours, fenced")
        await of_java(kafka, name, records=20, transaction_ms=100)
        with pytest.raises((ProducerFencedError, TransactionAbortableError)) as caught:
            await ours.commit_transaction()
        if caught.value.requires_abort:
            with pytest.raises(ProducerFencedError):
                await ours.abort_transaction()

        before = await length(kafka, name)
        # One transaction that lasts several seconds. The tool learns its outcome only at the end.
        theirs = asyncio.create_task(of_java(kafka, name, records=400, transaction_ms=600_000))
        while await length(kafka, name) == before:  # the tool sets no event
            assert not theirs.done(), theirs
            await asyncio.sleep(100 * MS)
        await within(30, ours.init_transactions())
        async with ours.transaction():
            await ours.send(name, b"ours")
        with pytest.raises(ApacheKafkaError, match=r"ProducerFencedException|InvalidProducerEpochException"):
            await within(60, theirs)

    log = await read_back(kafka.bootstrap_servers, name, committed_only=True)
    assert [record.value for record in log[0]] == [*(b"%d" % number for number in range(20)), b"ours"]
