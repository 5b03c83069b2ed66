"""Tests of exactly-once delivery: drivers, workers and brokers are killed at each point of the protocol.

They use the embedded cluster. The tests that kill executors also run on a real Kafka, because they share the
executors. The other tests on a real Kafka are in test_apache_spark.py."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from aioproducer.blocking import Producer
from aioproducer.spark.exactly_once import AGAIN
from tests.campaigns import spark_chaos
from tests.campaigns.spark_chaos import (
    AT_LEAST_ONCE,
    DEATHS,
    EXECUTOR,
    EXECUTORS,
    PARTITIONS,
    Broken,
    Crash,
    Run,
    apache,
    embedded,
    play,
)
from tests.support.spark_crashing import next_visit
from tests.support.spark_driver import Driver, Ended

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place():
    with embedded() as running:
        yield running


@pytest.fixture(scope="module")
def driver():
    """A driver, restarted only by the tests that kill it."""
    with Driver() as running:
        yield running


def test_processes_that_reach_a_place_simultaneously_count_each_visit_once(tmp_path):
    """If two tasks both counted the second visit, a crash ordered for the first visit would never happen."""
    together = multiprocessing.get_context("spawn").Barrier(2)
    with ProcessPoolExecutor(
        2, multiprocessing.get_context("spawn"), initializer=_meet, initargs=(together,)
    ) as processes:
        counts = list(processes.map(_visits, [tmp_path / "visits"] * 2, [5_000] * 2))

    assert sorted(counts[0] + counts[1]) == list(range(1, 10_001))


def _meet(together):
    together.wait(60)


def _visits(path, count):
    return [next_visit(path) for _ in range(count)]


class Idle:
    """A driver that does nothing, or does not answer."""

    def __init__(self, error=None):
        self.error = error
        self.killed = 0

    def play(self, order):
        if self.error is not None:
            raise self.error
        return Ended(0, "", order["visit"])

    def kill(self):
        self.killed += 1


@pytest.mark.parametrize("error", [None, AssertionError("the driver is silent")])
def test_an_unused_fault_is_removed(place, tmp_path, error):
    laid = []

    @contextmanager
    def seen(**told):
        with place.fault(**told) as fault:
            laid.append(fault)
            yield fault

    run = Run(Idle(error), replace(place, fault=seen), "idle", tmp_path / "run")

    with pytest.raises(AssertionError, match="silent" if error else "F5 was not reached"):
        run.drive(DEATHS["F5"])

    with Producer(place.servers) as producer:
        producer.send_and_wait("idle", b"v")
    assert [fault.hits for fault in laid] == [0]


def test_chaos_continues_with_another_driver_when_a_run_breaks(monkeypatch, capsys):
    driver = Idle()
    played = []

    def play(run, crashes, *, shuffles):
        played.append(run.topic)
        if len(played) == 1:
            raise AssertionError("the driver is silent")
        return 1

    monkeypatch.setattr("signal.signal", lambda *told: None)
    monkeypatch.setattr(spark_chaos, "play", play)
    monkeypatch.setattr(spark_chaos, "Driver", lambda: nullcontext(driver))

    assert spark_chaos.main(["--runs", "3", "--seed", "7"]) == 1

    assert (played, driver.killed) == (["chaos7", "chaos8", "chaos9"], 1)
    said = capsys.readouterr().out
    assert (
        "seed 7: the driver is silent\n  again: python -m tests.campaigns.spark_chaos --runs 1 --seed 7 --crashes 2"
        in said
    )
    assert "3 runs with 0 rows, 6 crashes, 2 processes killed, 1 runs broken" in said


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_each_row_is_committed_once_wherever_the_driver_is_killed(driver, place, tmp_path):
    crashes = [DEATHS[name] for name in ("F1", "F2", "F3", "F7", "F8", "F10")]

    # F14: the rows written by two tasks are written again by three.
    killed = play(Run(driver, place, "killed", tmp_path / "run"), crashes, shuffles=[2, 3, 1, 2, 3, 2, 1])

    assert killed == len(crashes)


@pytest.mark.promise(
    "Spark", "one transaction can cover several topics, and its marker survives changes to the list of topics"
)
@pytest.mark.timeout(400)
def test_each_row_for_three_topics_is_committed_once_wherever_a_process_is_killed(driver, place, tmp_path):
    run = Run(driver, place, "three", tmp_path / "run", topics=3)

    play(run, [DEATHS[name] for name in ("F7", "F10", "F12")])

    assert all(place.committed(topic) for topic in ("three", "three-2", "three-3"))


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_failing_tasks_zombies_and_a_commit_that_fails_after_it_took_effect(driver, place, tmp_path):
    names = ("F3 error", "F3 worker", "F4", "F6", "F12", "F13")
    run = Run(driver, place, "failed", tmp_path / "run")

    play(run, [DEATHS[name] for name in names])

    # Each batch was aborted.
    assert [bool(text.partition("\n")[2]) for text in run.log] == [True] * len(names)


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_answers_are_lost_and_brokers_are_killed_during_a_stream(driver, place, tmp_path):
    crashes = [
        DEATHS[name]._replace(visit=visit) for name in ("F5", "F9", "F11", "leader") for visit in (1, 2)
    ]

    play(Run(driver, place, "brokers", tmp_path / "one"), crashes)
    play(
        Run(driver, place, "brokers-at-least-once", tmp_path / "two", delivery="at_least_once"),
        [DEATHS[name] for name in AT_LEAST_ONCE],
    )


@pytest.mark.promise(
    "Spark", "the proof of `make chaos-spark` detects an at-least-once sink and one that ignores its marker"
)
@pytest.mark.timeout(400)
def test_the_proof_detects_at_least_once_and_a_sink_that_ignores_its_marker(driver, place, tmp_path):
    run = Run(driver, place, "twice", tmp_path / "one", delivery="at_least_once")
    run.add_files(2)
    assert run.drive(Crash("F7", "any commit", "driver")) < 0
    assert run.drive() == 0
    with pytest.raises(Broken, match="more than once"):
        run.check()

    run = Run(driver, place, "forgetful", tmp_path / "two")
    run.add_files(2)
    assert run.drive(DEATHS["F10"]) < 0
    assert run.drive(no_marker=True) == 0
    with pytest.raises(Broken, match="more than once"):
        run.check()


@pytest.fixture(scope="module")
def executors():
    """A driver with two executors in separate processes."""
    with Driver(EXECUTORS) as running:
        yield running


@pytest.fixture(
    params=["embedded", *(pytest.param(name, marks=pytest.mark.apache) for name in ("v2", "v1"))],
)
def anywhere(request, topic):
    """The embedded cluster, or a real one with the test's topic: Kafka 4.3.1 has transactions v2, Kafka 3.9.2 v1."""
    if request.param == "embedded":
        yield request.getfixturevalue("place")
        return
    kafka = request.getfixturevalue({"v1": "apache_kafka_39", "v2": "apache_kafka"}[request.param])
    asyncio.run(kafka.create_topic(topic, PARTITIONS))
    with apache(kafka) as real:
        yield real


@pytest.mark.promise("Spark", "each row is written exactly once, no matter which process is killed and when")
@pytest.mark.timeout(400)
def test_a_killed_executor_loses_and_duplicates_nothing(anywhere, executors, topic, tmp_path):
    run = Run(executors, anywhere, topic, tmp_path / "run")
    crashes = [EXECUTOR["F3 executor"], DEATHS["F3 error"], EXECUTOR["F3 acknowledged"]]

    assert play(run, crashes) == 2

    # The batch failed because of a second attempt or, if Spark ran the stage again, because of a second writer. If the
    # dead task had not sent anything, a second writer succeeds immediately; otherwise it never does
    # (test_a_stage_that_runs_again... in test_task.py and test_apache_spark.py). A failed first attempt, which Spark
    # does not repeat, is also logged with its reason.
    assert "SinkError: exactly_once: task " in run.log[0] or run.log[0] == "F3: exit 0\n"
    assert "SinkError: crash at row" in run.log[1]
    assert "SinkError: exactly_once: task " in run.log[2]
    assert "executor was lost" in run.log[2]
    assert AGAIN in run.log[2]


@pytest.mark.promise("Spark", "a query is restarted if an executor was lost, up to a limited number of times")
@pytest.mark.timeout(400)
def test_a_query_whose_executor_is_killed_is_started_again_and_the_executor_is_named(
    anywhere, executors, topic, tmp_path
):
    run = Run(executors, anywhere, topic, tmp_path / "run")
    run.add_files(2)

    assert run.drive(EXECUTOR["F3 acknowledged"], job="supervised") == 0

    run.check()
    assert "attempt 1 of 6 failed; the query is being restarted" in run.log[0]
    assert re.search(r"Spark reports: .*(executor \d+ on \S+ was lost|ExecutorLostFailure)", run.log[0])
