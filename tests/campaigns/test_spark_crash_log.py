"""Tests of the log of crash runs: what it stores, and the table that is printed from it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest

from benchmarks.spark.page import PAGE, between
from tests.campaigns.spark_chaos import EXECUTOR, REAL_DEATHS, again
from tests.campaigns.spark_crash_log import MARK, WHAT, CrashLog, CrashRun, printed, read

ONE = CrashRun(1, ("F1", "F3 executor"), 2, 3, 160, 2, 21.5)


def test_every_fault_has_a_line_in_the_table():
    assert WHAT.keys() == REAL_DEATHS.keys() | EXECUTOR.keys()


def test_each_call_and_each_run_has_a_line(tmp_path):
    path = tmp_path / "log"
    for seed in (1, 2):
        CrashLog(str(path), Namespace(seed=seed, log=str(path))).add(replace(ONE, seed=seed))

    calls, runs = read(path)
    assert [call["options"] for call in calls] == [{"seed": 1}, {"seed": 2}]
    assert runs == [ONE, replace(ONE, seed=2)]
    assert len(path.read_text().splitlines()) == 4


def test_without_a_path_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    CrashLog(None, Namespace()).add(ONE)

    assert list(tmp_path.iterdir()) == []


def test_the_command_that_plays_a_run_again_has_all_its_options():
    told = Namespace(crashes=3, topics=2, kafka="apache-3.9", executors=True)

    command = (
        "python -m tests.campaigns.spark_chaos --runs 1 --seed 7 --crashes 3 --topics 2 --kafka apache-3.9"
    )
    assert again(told, 7) == command + " --executors"


def test_the_table_counts_the_faults_and_the_rows(tmp_path):
    log = CrashLog(str(tmp_path / "log"), Namespace(kafka="apache", executors=True, topics=3, seed=1))
    log.add(ONE)
    log.add(replace(ONE, faults=("F1",)))

    text = printed(tmp_path / "log")

    assert '(`make chaos-spark ARGS="--kafka apache --executors --topics 3"`;' in text
    assert (
        "The runs included 3 faults, and 4 processes were killed. Of 320 rows, none was lost or duplicated."
        in text
    )
    assert "| the driver was killed before it planned a batch | 2 |" in text
    assert "| an executor was killed while its task was writing rows | 1 |" in text


def test_a_broken_run_is_told(tmp_path):
    log = CrashLog(str(tmp_path / "log"), Namespace())
    log.add(ONE)
    log.add(replace(ONE, broken="1 of 160 rows are lost"))

    assert "Of 320 rows, in 1 runs, rows were lost or duplicated." in printed(tmp_path / "log")


@pytest.mark.promise("Docs", "the figures of Spark's guide are printed from stored runs")
def test_the_guide_shows_the_stored_log():
    page = PAGE.read_text()

    assert page == between(page, MARK, printed())


@pytest.mark.promise(
    "Spark", "no row is lost or duplicated in the stored crash runs on a real Kafka cluster, with executors"
)
def test_the_stored_runs_are_clean_and_have_executors_and_three_topics():
    calls, runs = read()

    assert len({run.seed for run in runs}) == len(runs) >= 100
    assert [run for run in runs if run.broken or run.topics < 3] == []
    assert all(call["options"]["kafka"] == "apache" and call["options"]["executors"] for call in calls)
