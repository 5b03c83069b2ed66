"""Tests of the reports of tasks: their totals for the log and for a file."""

from __future__ import annotations

import json
import pickle

from aioproducer import TopicPartition
from aioproducer.spark.reports import TaskReport, Written, add_line, summary, totals

FIRST = TaskReport(0, 10, 1000, 0.5, 1, 0.002, {TopicPartition("a", 0): Written(10, 9)})
SECOND = TaskReport(1, 5, 500, 2.0, 0, 0.004, {TopicPartition("b", 0): Written(5, 4)})


def test_totals_add_rows_and_take_the_slowest_task():
    found = totals([FIRST, SECOND])

    assert (found.rows, found.bytes, found.tasks, found.retries) == (15, 1500, 2, 1)
    assert (found.topics, found.partitions) == (["a", "b"], 2)
    assert (found.seconds, found.p99_ms) == (2.0, 4.0)


def test_a_write_without_tasks_also_has_a_summary():
    assert summary([]).startswith("0 rows, 0.0 MB to 0 partitions of no topic by 0 tasks")


def test_each_write_adds_a_line_of_json(tmp_path):
    path = tmp_path / "reports.jsonl"
    for number in range(2):
        add_line(str(path), f"batch {number}", [FIRST, SECOND], 12.3456)

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["write"] for line in lines] == ["batch 0", "batch 1"]
    assert lines[0]["time"] == 12.346
    assert lines[0]["rows"] == 15


def test_a_report_travels_to_the_driver():
    assert pickle.loads(pickle.dumps(FIRST)) == FIRST
