"""The reports of make bench-spark: goals, tables, a plot; its plan, its broker, its measurement of CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree
from dataclasses import asdict, replace

import pytest

from benchmarks.spark import bench, environment, page, plan, plot, target
from benchmarks.spark.plan import (
    BATCH,
    CACHED,
    CONNECTOR,
    EXACTLY_ONCE,
    FOREACH_CONFLUENT,
    GENERATED,
    NOOP,
    OURS,
    PLACED,
    SMALL,
    STREAM,
    TUNED,
    Cell,
)
from benchmarks.spark.processes import Process, descendants, parsed, spent
from benchmarks.spark.report import Figures, Goal, as_record, goals, markdown, tables

pytestmark = pytest.mark.slow

GOOD = {
    (BATCH, OURS): {"rows_per_s": 1.3e6, "cpu_us": 0.8},
    (BATCH, TUNED): {"rows_per_s": 1.3e6, "cpu_us": 0.8},
    (BATCH, PLACED): {"rows_per_s": 1e6, "cpu_us": 0.8},
    (BATCH, EXACTLY_ONCE): {"rows_per_s": 0.85e6, "cpu_us": 0.8},
    (BATCH, CONNECTOR): {"rows_per_s": 1e6, "cpu_us": 1.0},
    (BATCH, FOREACH_CONFLUENT): {"rows_per_s": 0.26e6, "cpu_us": 6.0},
    (STREAM, OURS): {"rows_per_s": 1e6, "cpu_us": 1.0},
    (STREAM, PLACED): {"rows_per_s": 1e6, "cpu_us": 1.0},
    (STREAM, EXACTLY_ONCE): {"rows_per_s": 0.85e6, "cpu_us": 1.0},
    (STREAM, CONNECTOR): {"rows_per_s": 1e6, "cpu_us": 1.0},
    (SMALL, OURS): {"batch_ms": 100.0, "cpu_ms_per_batch": 50.0},
    (SMALL, EXACTLY_ONCE): {"batch_ms": 200.0, "cpu_ms_per_batch": 60.0},
    (SMALL, CONNECTOR): {"batch_ms": 100.0, "cpu_ms_per_batch": 40.0},
}
"""Results with which every goal is just met."""


def run_of(changed: dict | None = None) -> list[Figures]:
    figures = []
    for (section, sink), result in (GOOD | (changed or {})).items():
        result = {"rows": 1, "java_us": 0.5, "python_us": 0.3, **result}
        for frame in (GENERATED, CACHED) if section == BATCH else (GENERATED,):
            figures.append(Figures(Cell(section, sink, 1000, frame=frame), [result]))
    return figures


def verdicts(figures: list[Figures]) -> dict[str, bool | None]:
    return {goal.sentence: goal.met for goal in goals(figures)}


def record_of(figures: list[Figures]) -> dict:
    machine = {"spark": "4.0.0", "java": "17", "python": "3.11", "cpus": 2, "load": [1.0, 2.0]}
    return {
        "target": "a broker",
        "connector": "the connector",
        "conf": {"spark.a": "1"},
        "machine": machine | {"packages": {"pandas": "3.0"}},
        "seconds": 120.0,
        "is_cut_short": False,
        "cells": as_record(figures),
        "goals": [asdict(goal) for goal in goals(figures)],
    }


def test_arrow_batches_have_the_documented_size():
    rows = "spark.sql.execution.arrow.maxRecordsPerBatch"

    assert Cell(BATCH, OURS, 1).spark_settings == {}
    assert Cell(BATCH, TUNED, 1, value_size=1000).spark_settings[rows] == "2097"
    assert Cell(BATCH, TUNED, 1, value_size=100).spark_settings[rows] == "10000"


def test_settings_of_spark_are_parsed_and_shown(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "--conf", "spark.a=1", "--conf", "spark.b=c=d"])
    assert bench.parse().conf == {"spark.a": "1", "spark.b": "c=d"}

    monkeypatch.setattr(sys, "argv", ["bench", "--conf", "a=1"])
    with pytest.raises(SystemExit):
        bench.parse()
    assert "a=1: expected spark.NAME=VALUE" in capsys.readouterr().err
    assert "; spark.a=1. 12 partitions" in markdown(record_of(run_of()))


def test_a_run_may_be_limited_to_one_shape(monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["bench", "--value-size", "1000", "--compression", "none", "--sink", OURS]
    )

    cells = bench.wanted(bench.parse())

    assert {(cell.value_size, cell.compression, cell.frame) for cell in cells} == {
        (1000, "none", GENERATED),
        (1000, "none", CACHED),
    }


# goals


def test_all_goals_are_just_met():
    assert set(verdicts(run_of()).values()) == {True}


@pytest.mark.promise(
    "Spark",
    "`make bench-spark` compares the sink with the JVM connector, clients in `foreachPartition` and "
    "`mapInArrow`, and a Python sink that does nothing; it measures the CPU of the whole job, and the "
    "broker counts the rows",
)
@pytest.mark.parametrize(
    ("cell", "result", "sentences"),
    [
        (
            (BATCH, OURS),
            {"rows_per_s": 1.29e6, "cpu_us": 0.8},
            ["JVM connector", "rows per second at least 5"],
        ),
        ((BATCH, OURS), {"rows_per_s": 1.3e6, "cpu_us": 0.81}, ["CPU per row"]),
        ((BATCH, TUNED), {"rows_per_s": 1.29e6, "cpu_us": 0.8}, ["Arrow batches of 2 MB: rows per second"]),
        ((BATCH, TUNED), {"rows_per_s": 1.3e6, "cpu_us": 0.81}, ["Arrow batches of 2 MB: CPU per row"]),
        ((BATCH, FOREACH_CONFLUENT), {"rows_per_s": 0.3e6, "cpu_us": 6.0}, ["at least 5 times"]),
        ((BATCH, EXACTLY_ONCE), {"rows_per_s": 0.84e6, "cpu_us": 0.8}, ["at least 0.85"]),
        ((SMALL, EXACTLY_ONCE), {"batch_ms": 201.0, "cpu_ms_per_batch": 1.0}, ["at most 100 ms more"]),
        ((STREAM, EXACTLY_ONCE), {"rows_per_s": 0.84e6, "cpu_us": 1.0}, ["streams, exactly_once"]),
        ((STREAM, OURS), {"rows_per_s": 0.99e6, "cpu_us": 1.0}, ["streams: rows per second"]),
        ((SMALL, CONNECTOR), {"batch_ms": 99.0, "cpu_ms_per_batch": 1.0}, ["small micro-batch"]),
    ],
)
def test_a_narrowly_missed_goal_is_not_met(cell, result, sentences):
    missed = [sentence for sentence, met in verdicts(run_of({cell: result})).items() if not met]

    assert missed
    for sentence in sentences:
        assert any(sentence in found for found in missed), missed
    assert len(missed) < len(goals(run_of()))


def test_a_goal_missed_in_one_shape_is_missed():
    slow = Figures(Cell(BATCH, OURS, 1000, 1000), [{"rows_per_s": 1e6, "cpu_us": 1.0}])
    peer = Figures(Cell(BATCH, CONNECTOR, 1000, 1000), [{"rows_per_s": 1e6, "cpu_us": 1.0}])

    goal = goals([*run_of(), slow, peer])[0]

    assert goal.met is False
    assert goal.detail == "generated, 100 B, none: 1.30x; generated, 1 KB, none: 1.00x (no)"


def test_a_goal_that_was_not_measured_is_neither_met_nor_missed():
    assert set(verdicts([]).values()) == {None}
    assert Goal("fast", None, "").line() == "- fast: **not measured**"


def test_a_failed_row_meets_no_goal():
    figures = run_of()
    figures[0].failures.append("the broker counted 1 rows of 2 sent")

    assert goals(figures)[0].met is False
    assert "the broker counted 1 rows of 2 sent" in tables(figures)


# tables, status, picture


def test_a_cell_shows_the_median_and_the_spread():
    results = [{"rows_per_s": r, "cpu_us": 1.5, "java_us": 1.0, "python_us": 0.5} for r in (3e6, 1e6, 2e6)]

    text = tables([Figures(Cell(BATCH, OURS, 1000), results)])

    assert text.splitlines()[-1] == (
        "| aioproducer | **2.00M/s** [1.00M/s–3.00M/s]; **1.50** [1.50–1.50] µs (1.00 + 0.50) |"
    )


def test_every_shape_of_batch_writes_has_its_own_table():
    figures = [
        Figures(
            Cell(BATCH, NOOP, 1000, size, frame),
            [{"rows_per_s": 1.0, "cpu_us": 1, "java_us": 1, "python_us": 0}],
        )
        for size in (100, 1000)
        for frame in (GENERATED, CACHED)
    ]

    heads = [line for line in tables(figures).splitlines() if line.startswith("| |")]

    assert heads == [
        "| | generated, 100 B, none | cached, 100 B, none |",
        "| | generated, 1 KB, none | cached, 1 KB, none |",
    ]


def test_a_stored_run_gives_the_same_page():
    record = record_of(run_of())

    page = markdown(record)

    assert page == markdown(json.loads(json.dumps(record)))
    assert page.count("**met**") == len(goals(run_of()))
    assert "cut short" not in page
    assert "**cut short**" in markdown(record | {"is_cut_short": True})


def test_status():
    good, goal = run_of(), Goal("fast", False, "")
    failed = run_of()
    failed[0].failures.append("no")

    assert bench.status(good, [goal], False, check=False) == 0
    assert bench.status(good, [goal], False, check=True) == 1
    assert bench.status(failed, [goal], False, check=True) == 2
    assert bench.status(failed, [goal], True, check=True) == 130


def test_the_picture_is_the_same_for_the_same_run(tmp_path):
    first, png = plot.draw(run_of(), tmp_path / "a.json")
    second, _ = plot.draw(run_of(), tmp_path / "b.json")

    assert xml.etree.ElementTree.parse(first).getroot().tag.endswith("svg")
    assert first.read_bytes() == second.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")
    assert plot.draw([], tmp_path / "c.json") == []


# plan


@pytest.mark.promise(
    "Spark",
    "`make bench-spark` compares the sink with the JVM connector, clients in `foreachPartition` and "
    "`mapInArrow`, and a Python sink that does nothing; it measures the CPU of the whole job, and the "
    "broker counts the rows",
)
def test_a_full_run_has_every_sink_generated_and_cached():
    cells = plan.cells(False, None, [BATCH], plan.ALL_SINKS)
    headline = [cell for cell in cells if (cell.value_size, cell.compression) == (100, "none")]

    for frame in (GENERATED, CACHED):
        assert {cell.sink for cell in headline if cell.frame == frame} >= set(plan.BATCH_SINKS)
    assert min(cell.rows for cell in cells) >= 3_000_000
    assert len(cells) == len(set(cells))


@pytest.mark.promise(
    "Spark",
    "`make bench-spark` compares the sink with the JVM connector, clients in `foreachPartition` and "
    "`mapInArrow`, and a Python sink that does nothing; it measures the CPU of the whole job, and the "
    "broker counts the rows",
)
def test_rounds_are_interleaved_and_complete():
    cells = plan.cells(False, 6000, [BATCH, STREAM, SMALL], plan.ALL_SINKS)

    order = list(bench.interleaved(cells))

    assert {cell: order.count(cell) for cell in cells} == {cell: cell.repeats for cell in cells}
    first = order[: len([cell for cell in cells if cell.section == BATCH and cell.value_size == 100])]
    assert len(set(first)) == len(first)  # no cell is repeated before each was measured once
    sizes = [cell.value_size for cell in order if cell.section == BATCH]
    assert sizes == sorted(sizes)  # all measurements of one cached frame come before those of the next


def test_repeats_can_be_fewer():
    cells = plan.cells(False, 6000, [BATCH, STREAM, SMALL], plan.ALL_SINKS, repeats=1)

    assert {cell.repeats for cell in cells} == {1}


@pytest.mark.promise(
    "Spark",
    "`make bench-spark` compares the sink with the JVM connector, clients in `foreachPartition` and "
    "`mapInArrow`, and a Python sink that does nothing; it measures the CPU of the whole job, and the "
    "broker counts the rows",
)
def test_each_sink_is_warmed_up_in_frames_and_in_streams():
    asked = []

    class Asked(FakeStage):
        def ask(self, request):
            asked.append((request["cell"]["section"], request["cell"]["sink"]))
            raise bench.MeasurementError("enough")

        def end(self):
            pass

    sinks = [OURS, CONNECTOR]
    measured = bench.Run(plan.cells(False, 6000, [BATCH, STREAM], sinks))

    measured.measure(Asked(), FakeTarget(0))

    assert sorted(asked) == sorted((section, sink) for section in (BATCH, STREAM) for sink in sinks)
    assert all(f.failures for f in measured.figures.values())


# counting


def test_the_broker_acknowledges_transactions():
    """Send a participant's rows and the commit with its offset, as the sink does."""
    from aioproducer import OffsetAndMetadata, TopicPartition
    from aioproducer.blocking import Producer

    with target.AckTarget() as broker:
        topic = broker.topic()
        with Producer(broker.bootstrap, transactional_id="t") as owner:
            place = TopicPartition(topic, 0)
            owner.partitions_for(topic)
            assert owner.committed("group", [place]) == {place: None}
            owner.begin_transaction()
            owner.send(topic, b"value").result(10)
            owner.send_offsets_to_transaction({place: OffsetAndMetadata(7, "m")}, "group")
            owner.commit_transaction()

        assert broker.written(topic, transactional=True) == {"counted": 1, "rows_per_batch": 1.0}


def test_a_changed_broker_is_detected(monkeypatch, tmp_path):
    other = tmp_path / "ack_broker.c"
    other.write_text(target.BROKER.read_text().replace(target.LAST_API, ""))
    monkeypatch.setattr(target, "BROKER", other)

    with pytest.raises(RuntimeError, match="no longer contains this line"):
        target.source()


class FakeStage:
    def ask(self, request):
        return {"rows_per_s": 1.0}


class FakeTarget:
    bootstrap = "127.0.0.1:1"

    def __init__(self, counted):
        self.counted = counted
        self.dropped = []

    def topic(self):
        return "t1"

    def written(self, topic, *, transactional):
        return {"counted": self.counted}

    def drop(self, topic):
        self.dropped.append(topic)


@pytest.mark.promise(
    "Spark",
    "`make bench-spark` compares the sink with the JVM connector, clients in `foreachPartition` and "
    "`mapInArrow`, and a Python sink that does nothing; it measures the CPU of the whole job, and the "
    "broker counts the rows",
)
def test_a_missing_row_is_a_failure():
    cell = Cell(BATCH, OURS, 6000)
    enough, short = FakeTarget(cell.sent), FakeTarget(cell.sent - 1)

    assert bench.run(FakeStage(), enough, cell)["counted"] == 6000 + plan.WARM_ROWS
    with pytest.raises(bench.MeasurementError, match="counted 9,999 rows, but 10,000 were sent"):
        bench.run(FakeStage(), short, cell)
    assert short.dropped == ["t1"]


def test_a_sink_that_writes_nothing_must_not_write_a_row():
    with pytest.raises(bench.MeasurementError, match="counted 1 rows, but 0 were sent"):
        bench.run(FakeStage(), FakeTarget(1), Cell(BATCH, NOOP, 6000))


def test_ctrl_c_keeps_what_was_measured():
    cells = [Cell(SMALL, sink, 6000, warm_up=1, batches=1) for sink in (OURS, CONNECTOR)]

    class Interrupted(FakeStage):
        asked = ended = 0

        def ask(self, request):
            self.asked += 1
            if self.asked == 2:
                raise KeyboardInterrupt
            return {"batch_ms": 1.0, "cpu_ms_per_batch": 1.0, "rows_per_s": 1.0, "cpu_us": 1.0}

        def end(self):
            self.ended += 1

    stage, measured = Interrupted(), bench.Run(cells)

    measured.measure(stage, FakeTarget(12_000))

    assert measured.is_cut_short
    assert [len(f.results) for f in measured.figures.values()] == [1, 0]
    assert stage.ended == 1


# CPU time


def test_a_process_of_any_name_is_parsed():
    fields = " ".join(["S", "7", *map(str, range(5, 14)), "100", "20", "3", "4", *map(str, range(18, 53))])

    assert parsed(f"12 (a) b) {fields}") == Process("a) b", 7, 1.2, 0.07)


@pytest.mark.promise(
    "Spark",
    "`make bench-spark` compares the sink with the JVM connector, clients in `foreachPartition` and "
    "`mapInArrow`, and a Python sink that does nothing; it measures the CPU of the whole job, and the "
    "broker counts the rows",
)
def test_cpu_is_that_of_all_descendants():
    table = {
        1: Process("init", 0, 50.0),
        2: Process("python", 1, 1.0),
        3: Process("java", 2, 10.0),
        4: Process("python", 3, 2.0),
        5: Process("python3", 4, 4.0),
        6: Process("java", 1, 99.0),
    }

    used = spent({}, descendants(2, table))

    assert (used.java, used.python, used.total) == (10.0, 7.0, 17.0)


def test_a_worker_that_ended_does_not_reduce_the_cpu_of_the_others():
    before = {1: Process("java", 0, 5.0), 2: Process("python", 1, 1.0), 3: Process("python", 2, 7.0)}

    left_alone = spent(before, {1: Process("java", 0, 6.0), 2: Process("python", 1, 1.5)})
    waited_for = spent(before, {1: Process("java", 0, 6.0), 2: Process("python", 1, 1.5, 7.25)})

    assert left_alone == (1.0, 0.5)
    assert waited_for == (1.0, 0.75)


def test_cpu_of_a_child_that_has_ended_counts():
    def this_process():
        """Only this process: a Spark of other tests may end a worker at this moment."""
        return {os.getpid(): descendants(os.getpid())[os.getpid()]}

    before = this_process()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)

    assert spent(before, this_process()).python > 0.25


# the environment


def test_modules_on_pythonpath_do_not_count_as_installed(monkeypatch, tmp_path, capsys):
    """The tests of the sink set PYTHONPATH, and the environment once lacked all packages that
    could be imported from there."""
    commands = []
    monkeypatch.setattr(environment, "BUILD", tmp_path)
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **_: commands.append(command))
    (tmp_path / "pyspark-4.0.0").mkdir()
    monkeypatch.setattr(environment.shutil, "rmtree", lambda *_, **__: None)

    python = environment.python_with("4.0.0")

    assert commands[-1][:5] == [str(python), "-I", "-m", "pip", "install"]
    assert "430 MB" in capsys.readouterr().err


def test_the_name_of_a_mixed_connector_shows_both_versions():
    release = environment.CONNECTORS[0]

    assert "token provider" not in release.name
    assert "with the token provider 1.0" in release._replace(token_provider="1.0").name


def test_an_unknown_connector_is_rejected():
    with pytest.raises(environment.MissingError, match=r"--connector 1.2: unknown, expected one of .*4.0.0"):
        environment.connector("1.2")


def test_the_newest_complete_connector_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "BUILD", tmp_path)
    tried = []

    def fetched(release):
        tried.append(release.version)
        return release.version == "4.0.0"

    monkeypatch.setattr(environment, "_fetched", fetched)

    assert environment.connector(None).version == "4.0.0"
    assert tried == [release.version for release in environment.CONNECTORS]
    with pytest.raises(environment.MissingError, match="could not be fetched from Maven Central"):
        environment.connector("4.2.0")


def test_an_existing_connector_is_not_downloaded_again(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "BUILD", tmp_path)
    monkeypatch.setattr(environment, "_fetched", None)
    environment.CONNECTORS[-1].jars.mkdir()

    assert environment.connector(None) == environment.CONNECTORS[-1]


def test_aioproducers_defaults_have_their_own_row():
    cell = Cell(BATCH, OURS, 6000)

    assert replace(cell, by_default=True).row == "aioproducer, its defaults"
    assert cell.row == "aioproducer"


# --------------------------------------------------------------------------------------------------------- the page


@pytest.mark.promise("Docs", "the figures of Spark's guide are printed from stored runs")
def test_the_guide_shows_the_stored_runs(capsys):
    assert page.main(["--check"]) == 0, capsys.readouterr().err


def stored(folder, figures=None):
    for name in page.STORED:
        record = record_of(figures or run_of()) | {"arguments": "--repeats 1"}
        (folder / name).write_text(json.dumps(record))
    return page.printed(folder)


def test_the_page_has_the_command_the_machine_the_figures_and_their_ratios(tmp_path):
    printed = stored(tmp_path)

    assert '`make bench-spark ARGS="--repeats 1"`: Spark 4.0.0 on `local[2]`, `spark.a=1`; Java 17' in printed
    assert "load 1.0 before the run and 2.0 after it" in printed
    assert f"| {OURS} | **1.30M/s** [1.30M/s–1.30M/s]; **0.80**" in printed
    assert f"| {OURS} / {CONNECTOR} | 1.30; 0.80 | 1.30; 0.80 |" in printed
    assert f"| {EXACTLY_ONCE} / {OURS} | 100 ms more |" in printed


def test_a_page_that_is_out_of_date_is_found_and_printed_again(tmp_path, monkeypatch, capsys):
    old = "figures\n" + page.between(
        f"<!-- {page.MARK}: begin --><!-- {page.MARK}: end -->", page.MARK, "old"
    )
    guide = tmp_path / "spark.md"
    guide.write_text(old)
    stored(tmp_path)
    (tmp_path / "ack.svg").write_text("<svg/>")
    monkeypatch.setattr(page, "PAGE", guide)
    monkeypatch.setattr(page, "RESULTS", tmp_path)

    assert page.main(["--check"]) == 1
    assert "python -m benchmarks.spark.page" in capsys.readouterr().err
    assert guide.read_text() == old
    assert page.main([]) == page.main(["--check"]) == 0
    assert (tmp_path / "spark-speed.svg").read_text() == "<svg/>"


def test_a_page_without_the_comments_is_an_error():
    with pytest.raises(ValueError, match="does not have the comments"):
        page.between("text", page.MARK, "new")
