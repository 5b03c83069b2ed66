"""The reports of benchmarks/: medians and spreads, goals met and missed, tables, plots, files."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

import bench
import goals
import plan
import plots
import report
from figures import Figures
from goals import KEYED, MET, NOT_MEASURED, NOT_MET, Goal
from job import Job
from plan import AIO, AIOKAFKA, BARE_LOOP, BARE_STREAM, CALLBACK, CLIENTS, OURS, Cell
from programs import FRANZ_GO, JAVA
from services import WORKS

PEERS = (FRANZ_GO, JAVA, CALLBACK, AIO, AIOKAFKA)


def figures_of(section: str, row: str, column: str, *repeats: dict) -> Figures:
    client = next((c for c in (*CLIENTS, BARE_STREAM, BARE_LOOP) if row.startswith(c)), OURS)
    return Figures(Cell(section, column, row, Job("", client), len(repeats)), list(repeats))


GOOD = {
    "cpu_us": 0.025,
    "own_us": 0.01,
    "client_us": 0.025,
    "records_per_s": 9e6,
    "p50_ms": 0.06,
    "p99_ms": 0.1,
    "bytes_per_record": 180.0,
    "idle_p99_ms": 0.1,
    "idle_max_ms": 0.2,
    "held_p99_ms": 1.0,
    "held_max_ms": 1.5,
    "lag_p99_ms": 2.0,
    "lag_max_ms": 10.0,
    "records_per_batch": 500.0,
    "stored_bytes": 300.0,
}
THEIRS = GOOD | {
    "cpu_us": 1.0,
    "client_us": 1.0,
    "records_per_s": 1e6,
    "p50_ms": 0.1,
    "p99_ms": 0.5,
    "bytes_per_record": 300.0,
}


def good_run() -> list[Figures]:
    """Return a run in which every goal is just met or exceeded."""
    rows = [(s, c) for s in ("throughput", "throughput real") for c in ("100 B, 12 partitions",)]
    rows += [("throughput", "1000 B, 12 partitions"), ("memory", "100 B, 12 partitions")]
    rows += [("closed loop", c) for c in ("1 task, linger 0 ms", *goals.LOOPS)]
    rows += [("closed loop real", "1 task, linger 0 ms"), ("distance", "100 B, 20 ms")]
    rows += [("partitions", c) for c in ("1", "1,000", "10,000")]
    rows += [("services", work) for work in WORKS]
    rows += [(s, c) for s in ("codecs", "lag") for c in ("none", "zstd", "lz4", "gzip", "snappy")]
    windows = [(s, c) for s in ("window", "window real") for c in ("100 B", "1000 B")]
    found = [
        figures_of(s, row, c, GOOD if row == OURS else THEIRS) for s, c in rows for row in (OURS, *PEERS)
    ]
    found += [figures_of(s, OURS, c, GOOD | {"cpu_us": 0.11}) for s, c in windows]
    found += [figures_of(s, FRANZ_GO + how, c, THEIRS) for s, c in windows for how in ("", ", GOMAXPROCS=1")]
    found += [
        figures_of("tls", row, column, GOOD | {"cpu_us": cpu})
        for row, column, cpu in (
            (OURS, "with TLS", 2.1),
            (OURS, "without", 1.0),
            (BARE_STREAM, "with TLS", 1.0),
            (BARE_STREAM, "without", 0.3),
        )
    ]
    for data in ("lists", "Arrow"):
        found += [
            figures_of("columns", f"{data}, {how}", KEYED, GOOD) for how in ("encoded only", "acknowledged")
        ]
        found.append(figures_of("columns real", f"{data}, read back", KEYED, GOOD))
    wire = "1000 B, 1 connection"
    found += [
        figures_of("wire", OURS, wire, GOOD),
        figures_of("wire", BARE_STREAM, wire, GOOD | {"records_per_s": 1e7}),
    ]
    return found


def judged(figures: list[Figures]) -> dict[str, Goal]:
    return {goal.name: goal for goal in goals.goals(figures)}


def changed(
    figures: list[Figures], section: str, column: str, row: str = OURS, **values: float
) -> list[Figures]:
    hit = [f for f in figures if (f.cell.section, f.cell.column, f.cell.row) == (section, column, row)]
    assert len(hit) == 1
    hit[0].results = [hit[0].results[0] | values]
    return figures


# ---------------------------------------------------------------------------------------------------- figures


def test_a_figure_is_shown_with_its_median_minimum_and_maximum():
    figures = figures_of("throughput", OURS, "c", {"cpu_us": 3.0}, {"cpu_us": 0.5}, {"cpu_us": 1.25})

    assert figures.median("cpu_us") == 1.25
    assert figures.spread("cpu_us") == "**1.25** [0.50–3.00]"


def test_figures_survive_a_round_trip_through_json():
    figures = figures_of("throughput", OURS, "c", {"cpu_us": 3.0})

    assert Figures.from_json(json.loads(json.dumps(figures.as_json()))) == figures


# ------------------------------------------------------------------------------------------------------ goals


@pytest.mark.promise("Speed", "each goal from P1 to P13 is reported as met, or as NOT MET with the ratio")
def test_there_are_thirteen_goals_and_a_good_run_meets_all_of_them():
    found = judged(good_run())

    assert [*found] == [f"P{number}" for number in range(1, 14)]
    assert {goal.verdict for goal in found.values()} == {MET}


@pytest.mark.promise("Speed", "each goal from P1 to P13 is reported as met, or as NOT MET with the ratio")
@pytest.mark.parametrize(
    ("goal", "section", "column", "values"),
    [
        ("P1", "throughput", "100 B, 12 partitions", {"cpu_us": 1.01}),
        ("P1", "throughput real", "100 B, 12 partitions", {"cpu_us": 0.41}),
        ("P1", "throughput", "100 B, 12 partitions", {"cpu_us": 1 / 13.9}),
        ("P2", "closed loop", "1,000 tasks, linger 0 ms", {"records_per_s": 4.9e6}),
        ("P2", "closed loop", "1,000 tasks, its defaults", {"cpu_us": 1.01}),
        ("P2", "closed loop", "1,000 tasks, its defaults", {"p99_ms": 0.17}),
        ("P3", "closed loop", "1 task, linger 0 ms", {"p50_ms": 0.071}),
        ("P3", "closed loop real", "1 task, linger 0 ms", {"p50_ms": 0.061}),
        ("P3", "closed loop real", "1 task, linger 0 ms", {"p99_ms": 0.31}),
        ("P5", "throughput", "1000 B, 12 partitions", {"cpu_us": 1.01}),
        ("P5", "wire", "1000 B, 1 connection", {"records_per_s": 7.9e6}),
        ("P6", "memory", "100 B, 12 partitions", {"bytes_per_record": 181.0}),
        ("P7", "lag", "gzip", {"lag_p99_ms": 2.1}),
        ("P7", "lag", "none", {"lag_max_ms": 10.1}),
        ("P8", "partitions", "1,000", {"cpu_us": 0.81}),
        ("P8", "partitions", "10,000", {"cpu_us": 1.0}),
        ("P9", "distance", "100 B, 20 ms", {"records_per_s": 4.4e6}),
        ("P10", "codecs", "snappy", {"cpu_us": 1.0}),
        ("P11", "services", "str, encode", {"client_us": 0.038}),
        ("P11", "services", "dict, orjson", {"client_us": 0.038}),
        ("P11", "services", "dict, json", {"client_us": 0.038}),
        ("P11", "services", "a header", {"client_us": 0.053}),
        ("P11", "services", "traces, recorded", {"client_us": 1.0}),
        ("P11", "services", "dict, Avro, traces, metrics", {"client_us": 1.0}),
        ("P12", "window", "100 B", {"cpu_us": 1.11}),
        ("P12", "window real", "1000 B", {"records_per_s": 0.7e6, "cpu_us": 1.0}),
        ("P12", "window", "1000 B", {"cpu_us": 0.09}),
        ("P13", "tls", "with TLS", {"cpu_us": 2.21}),
    ],
)
def test_a_missed_goal_is_not_met_and_does_not_affect_others(goal, section, column, values):
    found = judged(changed(good_run(), section, column, **values))

    assert {name for name, found_goal in found.items() if found_goal.verdict == NOT_MET} == {goal}
    assert {found_goal.verdict for name, found_goal in found.items() if name != goal} == {MET}


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("lists, encoded only", {"cpu_us": 0.26}),
        ("Arrow, encoded only", {"cpu_us": 0.034}),
        ("lists, acknowledged", {"records_per_s": 2.9e6}),
        ("Arrow, acknowledged", {"records_per_s": 5.9e6}),
    ],
)
def test_send_many_has_its_own_bounds(row, values):
    assert judged(changed(good_run(), "columns", KEYED, row, **values))["P4"].verdict == NOT_MET


def test_a_goal_is_not_met_if_its_measurement_failed():
    figures = good_run()
    for f in figures:
        if f.cell.section == "columns real":
            f.failures.append("599,999 records of 600,000 were read back")

    assert judged(figures)["P4"].verdict == NOT_MET


@pytest.mark.promise("Speed", "each goal from P1 to P13 is reported as met, or as NOT MET with the ratio")
def test_a_goal_without_its_peer_is_not_measured():
    figures = [f for f in good_run() if f.cell.job.client != FRANZ_GO]

    found = judged(figures)

    assert {name for name, goal in found.items() if goal.verdict == NOT_MEASURED} == {
        "P1",
        "P2",
        "P5",
        "P8",
        "P10",
        "P12",
    }
    assert judged(changed(figures, "partitions", "1,000", cpu_us=0.9))["P8"].verdict == NOT_MET


@pytest.mark.promise("Speed", "each goal from P1 to P13 is reported as met, or as NOT MET with the ratio")
def test_a_missed_goal_is_reported_with_the_ratio():
    found = judged(changed(good_run(), "throughput", "1000 B, 12 partitions", cpu_us=1.5))

    assert found["P5"].lines()[:2] == [
        "- P5 pipelined records of 1 KB cost at most franz-go's CPU, and one connection reaches 80% of a bare "
        "stream's rate: **NOT MET**",
        "  - throughput, 1000 B, 12 partitions: CPU at most franz-go's: **NOT MET**, missed by 1.50x "
        "(1.50 µs vs. 1.00 µs: 1.50x)",
    ]
    assert found["P6"].lines() == [
        "- P6 a waiting record of 100 B takes up at most 180 B of memory: **met**",
        "  - memory, aioproducer, 100 B, 12 partitions: memory at most 180 B: met (180 B)",
    ]


# ------------------------------------------------------------------------------------------- tables and files


def stored_run(figures: list[Figures], **changes: object) -> dict:
    run = {
        "machine": {"cpus": 2, "load": 0.5, "versions": {"aioproducer": "0.1.0", "Python": "3.11"}},
        "seconds": 1200.0,
        "load": 1.5,
        "missing": {},
        "interrupted": False,
        "narrowed": False,
        "cells": [f.as_json() for f in figures],
        "goals": [],
    }
    return run | changes


def test_a_table_has_clients_as_rows_and_cases_as_columns_or_the_reverse():
    found = [figures_of("throughput", row, "100 B", GOOD) for row in (OURS, AIOKAFKA)]
    assert report.table("throughput", found).splitlines()[2:] == [
        "| | 100 B |",
        "|---|---|",
        f"| {OURS} | **0.03** [0.03–0.03] µs; 9.00M/s; 500 a batch |",
        f"| {AIOKAFKA} | **0.03** [0.03–0.03] µs; 9.00M/s; 500 a batch |",
    ]

    found = [figures_of("codecs", OURS, codec, GOOD) for codec in ("lz4", "zstd")]
    assert [line.partition("**")[0] for line in report.table("codecs", found).splitlines()[2:]] == [
        f"| | {OURS} |",
        "|---|---|",
        "| lz4 | ",
        "| zstd | ",
    ]


def test_everything_in_which_a_peer_is_ahead_is_listed_with_its_ratio():
    figures = good_run()
    assert report.behind([f for f in figures if f.cell.section != "lag"]) == ""

    changed(figures, "throughput", "100 B, 12 partitions", FRANZ_GO, records_per_s=18e6)
    changed(figures, "closed loop real", "1 task, linger 0 ms", AIOKAFKA, p99_ms=0.08)

    lines = report.behind([f for f in figures if f.cell.section != "lag"]).splitlines()
    assert lines[2:] == [
        "| throughput, 100 B, 12 partitions: rate | 9.00M/s | franz-go 18.00M/s (0.50x) |",
        "| closed loop real, 1 task, linger 0 ms: p99 | 0.10 ms | aiokafka 0.08 ms (1.25x) |",
    ]


def test_a_missed_goal_shows_the_bare_loop_which_is_not_a_peer():
    kilobyte = ("throughput", "1000 B, 12 partitions")
    figures = changed(good_run(), *kilobyte, cpu_us=1.5)
    figures.append(figures_of(kilobyte[0], BARE_LOOP, kilobyte[1], GOOD | {"cpu_us": 0.9}))

    missed = judged(figures)["P5"].lines()[1]
    assert missed.endswith("missed by 1.50x (1.50 µs vs. 1.00 µs: 1.50x; the bare loop: 0.90 µs, 0.90x)")
    assert BARE_LOOP not in report.behind(figures)
    assert not any(BARE_LOOP in line for line in report.ratios(figures))


def test_a_peer_with_another_setting_is_not_compared():
    figures = [
        figures_of("window", OURS, "100 B", GOOD),
        figures_of("window", FRANZ_GO + ", GOMAXPROCS=1", "100 B", GOOD | {"cpu_us": 0.01}),
    ]

    assert report.behind(figures) == ""


def test_a_service_shows_the_client_and_the_users_function():
    found = [figures_of("services", OURS, "dict, json", GOOD)]

    assert report.table("services", found).splitlines()[2:] == [
        f"| | {OURS} |",
        "|---|---|",
        "| dict, json | **0.03** [0.03–0.03] + 0.01 µs |",
    ]


def test_a_goal_for_services_is_not_met_if_its_measurement_failed():
    figures = good_run()
    for f in figures:
        if (f.cell.section, f.cell.row, f.cell.column) == ("services", OURS, "str, encode"):
            f.failures.append("no result")

    assert judged(figures)["P11"].verdict == NOT_MET


def test_a_cell_that_failed_shows_no_figure():
    figures = figures_of("throughput", OURS, "100 B", GOOD)
    figures.failures.append("the broker counted 1 records of 2 sent")

    assert "| **FAILED**: the broker counted 1 records of 2 sent |" in report.table("throughput", [figures])


def test_every_section_of_the_plan_has_a_table():
    assert {*plan.SECTIONS} == {*report.TABLES}


@pytest.mark.promise(
    "Speed",
    "a run is written as JSON, tables and plots; Ctrl-C keeps what was measured; only a whole run "
    "replaces the stored one, and text written by hand is kept",
)
def test_a_run_is_written_as_json_tables_and_plots(tmp_path):
    document = tmp_path / "RESULTS.md"

    text = bench.write(stored_run(good_run()), tmp_path / "results", document)

    assert document.read_text() == text
    assert (
        "- P10 with each codec, records of 1 KB, read back from a real broker, cost less CPU than with the other "
        "clients: **met**"
    ) in text
    again = json.loads((tmp_path / "results" / "results.json").read_text())
    assert again["cells"] == json.loads(json.dumps([f.as_json() for f in good_run()]))
    for name in plots.PLOTS:
        assert f"![results/{name}.svg](results/{name}.svg)" in text
        svg = xml.etree.ElementTree.parse(tmp_path / "results" / f"{name}.svg")
        assert svg.getroot().tag == "{http://www.w3.org/2000/svg}svg"
        assert (tmp_path / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_same_run_gives_the_same_plots(tmp_path):
    for directory in ("one", "two"):
        plots.draw(good_run(), tmp_path / directory)

    for name in plots.PLOTS:
        assert (tmp_path / "one" / f"{name}.svg").read_bytes() == (
            tmp_path / "two" / f"{name}.svg"
        ).read_bytes()


def test_plots_without_figures_are_not_drawn(tmp_path):
    assert plots.draw([figures_of("throughput", OURS, "another", GOOD)], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise(
    "Speed",
    "a run is written as JSON, tables and plots; Ctrl-C keeps what was measured; only a whole run "
    "replaces the stored one, and text written by hand is kept",
)
@pytest.mark.usefixtures("no_plots")
def test_remarks_written_by_hand_stay_when_a_run_is_written(tmp_path, monkeypatch):
    remarks = tmp_path / "REMARKS.md"
    remarks.write_text("## Why P8 was missed\n\nBecause.\n")
    monkeypatch.setattr(report, "REMARKS", remarks)

    for _ in range(2):
        text = bench.write(stored_run(good_run()), tmp_path, tmp_path / "RESULTS.md")
        assert text.count("## Why P8 was missed\n\nBecause.\n\n## Pipelined") == 1

    assert remarks.read_text() == "## Why P8 was missed\n\nBecause.\n"


def test_a_document_names_missing_clients_and_says_if_it_was_interrupted():
    text = report.document(stored_run([], missing={JAVA: "there is no java"}, interrupted=True), [])

    assert "Not measured: Java (there is no java)." in text
    assert "**Interrupted**" in text
    assert (
        f"- P1 pipelined records of 100 B, each with a future, cost at most franz-go's CPU: **{NOT_MEASURED}**"
        in text
    )


def test_ratios_show_how_many_times_more_the_other_clients_take():
    figures = [
        figures_of("throughput", OURS, "c", {"cpu_us": 0.5}),
        figures_of("throughput", AIOKAFKA, "c", {"cpu_us": 6.0}),
    ]

    assert report.ratios(figures) == ["- throughput, c: aiokafka 12.00"]


# ------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def no_plots(monkeypatch) -> None:
    """Skip the plots, which take seconds and have their own tests."""
    monkeypatch.setattr(plots, "draw", lambda figures, directory: [])


@pytest.mark.promise(
    "Speed",
    "a run is written as JSON, tables and plots; Ctrl-C keeps what was measured; only a whole run "
    "replaces the stored one, and text written by hand is kept",
)
@pytest.mark.parametrize(
    ("changes", "whole"), [({}, True), ({"interrupted": True}, False), ({"narrowed": True}, False)]
)
@pytest.mark.usefixtures("no_plots")
def test_only_a_whole_run_replaces_the_stored_one(changes, whole, tmp_path, monkeypatch, capsys):
    result = stored_run(good_run(), **changes)
    monkeypatch.setattr("sys.argv", ["bench.py"])
    monkeypatch.setattr(bench, "measure", lambda options: result)
    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(bench, "PARTIAL", tmp_path / "partial")

    status = bench.main()

    assert status == (130 if "interrupted" in changes else 0)
    assert (tmp_path / "RESULTS.md").exists() == (tmp_path / "results").exists() == whole
    assert (tmp_path / "partial" / "RESULTS.md").exists() != whole
    assert "aioproducer compared with its peers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "narrowed"),
    [
        ([], False),
        (["--quick"], True),
        (["--repeats", "1"], True),
        (["--sections", "lag"], True),
        (["--clients", f"{OURS},{AIOKAFKA}"], True),
    ],
)
def test_a_run_records_whether_all_measurements_were_requested(arguments, narrowed):
    assert bench.asks_for_all(bench.parse(arguments)) != narrowed


@pytest.mark.usefixtures("no_plots")
def test_a_stored_run_can_be_rendered_again(tmp_path, monkeypatch, capsys):
    stored = tmp_path / "stored.json"
    stored.write_text(json.dumps(stored_run(good_run())))
    monkeypatch.setattr(
        "sys.argv", ["bench.py", "--render", str(stored), "--output", str(tmp_path / "again")]
    )

    assert bench.main() == 0
    assert (tmp_path / "again" / "RESULTS.md").read_text().rstrip() == capsys.readouterr().out.rstrip()


@pytest.mark.parametrize(("version", "loop"), [("0.23.0", "uvloop"), ("not installed", "asyncio's own loop")])
def test_the_heading_names_the_loop(version, loop):
    run = stored_run(good_run())
    run["machine"]["versions"]["uvloop"] = version

    assert f"clients run on {loop}," in "\n".join(report.heading(run))


@pytest.mark.usefixtures("no_plots")
def test_the_exit_status_reports_failures_and_missed_goals(tmp_path: Path, monkeypatch, capsys):
    figures = good_run()
    missed = stored_run(figures, goals=[{"verdict": NOT_MET}])
    figures[0].failures.append("no result")
    failed = stored_run(figures, goals=[{"verdict": MET}])

    for result, arguments, status in ((missed, ["--check"], 1), (missed, [], 0), (failed, [], 2)):
        monkeypatch.setattr("sys.argv", ["bench.py", "--output", str(tmp_path), *arguments])
        monkeypatch.setattr(bench, "measure", lambda options, result=result: result)
        assert bench.main() == status
    assert "FAILED: throughput: aioproducer, 100 B, 12 partitions" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--sections", "lags"], ["--clients", "sarama"]])
def test_an_unknown_name_is_rejected(arguments, capsys):
    with pytest.raises(SystemExit):
        bench.parse(arguments)

    assert "unknown, expected some of" in capsys.readouterr().err


def test_without_a_terminal_progress_is_a_line_for_each_section(capsys):
    progress = bench.Progress(30)
    cells = bench.cells(True, ["memory", "lag"], [OURS, AIOKAFKA])
    for done, cell in enumerate(cells):
        progress(done, cell)
    progress.end()

    assert [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines()] == ["memory", "lag"]
