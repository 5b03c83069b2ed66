"""Tests of the reports of tasks: their totals for the log and for a file."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

import pytest

from aioproducer import TopicPartition
from aioproducer.spark.reports import BatchListener, TaskReport, Written, add_line, summary, totals

FIRST = TaskReport(0, 10, 1000, 0.5, 1, 0.002, {TopicPartition("a", 0): Written(10, 9)})
SECOND = TaskReport(1, 5, 500, 2.0, 0, 0.004, {TopicPartition("b", 0): Written(5, 4)})


def test_totals_add_rows_and_include_the_slowest_task():
    found = totals([FIRST, SECOND])

    assert (found.rows, found.bytes, found.tasks, found.retries) == (15, 1500, 2, 1)
    assert (found.topics, found.partitions) == (["a", "b"], 2)
    assert (found.seconds, found.p99_ms) == (2.0, 4.0)


def test_a_write_without_tasks_also_has_a_summary():
    assert summary([]).startswith("0 rows, 0.0 MB to 0 partitions of no topic by 0 tasks")


def test_each_write_adds_a_line_of_json(tmp_path):
    path = tmp_path / "reports.jsonl"
    for number in range(2):
        add_line(str(path), f"batch {number}", totals([FIRST, SECOND], 0.25), 12.3456)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["write"] for line in lines] == ["batch 0", "batch 1"]
    assert lines[0]["time"] == 12.346
    assert lines[0]["rows"] == 15
    assert lines[0]["transaction"] == 0.25


def test_only_a_transaction_has_a_duration():
    assert "; slowest 2.00 s, 1 retry" in summary([FIRST, SECOND])
    assert "; slowest 2.00 s, transaction 0.25 s, 1 retry" in summary([FIRST, SECOND], 0.25)


def progress(number, name=None):
    return SimpleNamespace(progress=SimpleNamespace(batchId=number, name=name, id="q"))


@pytest.mark.promise("Spark", "each batch has a log line on the driver, and a listener receives its figures")
def test_a_listener_passes_on_the_figures_of_each_batch_once(tmp_path):
    path, seen = str(tmp_path / "reports.jsonl"), []
    add_line(path, "batch 0", totals([FIRST]), 1.0)  # of an earlier run
    listener = BatchListener(path, lambda progress, found: seen.append((progress.batchId, found)))

    listener.onQueryProgress(progress(0))
    add_line(path, "batch 0", totals([FIRST, SECOND], 0.25), 2.0)
    listener.onQueryProgress(progress(0))
    add_line(path, "batch 1", totals([SECOND]), 3.0)
    for _ in range(2):
        listener.onQueryProgress(progress(1))

    assert seen == [(0, totals([FIRST, SECOND], 0.25)), (1, totals([SECOND]))]


@pytest.mark.promise("Spark", "each batch has a log line on the driver, and a listener receives its figures")
def test_a_listener_logs_by_default_and_waits_for_the_file(tmp_path, caplog):
    caplog.set_level("INFO", "aioproducer.spark")
    path = str(tmp_path / "reports.jsonl")
    listener = BatchListener(path)

    listener.onQueryProgress(progress(0))
    add_line(path, "batch 0", totals([FIRST], 0.25), 1.0)
    listener.onQueryProgress(progress(0, "flights"))

    assert (
        "flights, batch 0: 10 rows, 0.0 MB to 1 partition of a by 1 task; slowest 0.50 s, transaction"
        in caplog.text
    )


def test_a_report_is_sent_to_the_driver():
    assert pickle.loads(pickle.dumps(FIRST)) == FIRST
