"""The tables of README.md: a few figures of the stored run, each table in the place of the one that stood there."""

from __future__ import annotations

import re
from collections.abc import Callable

from figures import Figures, number, rate
from plan import (
    AIO,
    AIOKAFKA,
    BY_DEFAULT,
    CALLBACK,
    CLOSED_LOOP,
    COMPRESSING,
    FRANZ_GO,
    JAVA,
    KAFKA_PYTHON,
    LAG,
    MEMORY,
    ON_ASYNCIO,
    OURS,
    THROUGHPUT,
    THROUGHPUT_REAL,
)

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
NAMES = {
    OURS + BY_DEFAULT: "aioproducer, batch_size 256 KiB (its default)",
    FRANZ_GO: "franz-go (Go)",
}
"""Of rows that are called otherwise there."""
SHAPES = [
    f"{size} B, {partitions}" for size in (100, 1000) for partitions in ("12 partitions", "1 partition")
]
PIPELINED = [
    OURS, OURS + BY_DEFAULT, OURS + ON_ASYNCIO, FRANZ_GO, JAVA, CALLBACK, AIO, AIOKAFKA, KAFKA_PYTHON
]  # fmt: skip
AWAITED = [OURS, FRANZ_GO, JAVA, AIOKAFKA, AIO]
WAITING = [OURS, JAVA, FRANZ_GO, AIOKAFKA, CALLBACK, AIO]
CODECS = ["none", *COMPRESSING]
LOOPS = ["1 task, linger 0 ms", "1,000 tasks, linger 0 ms", "1,000 tasks, its defaults"]


def cpu_and_rate(f: Figures) -> str:
    return f"**{number(f.median('cpu_us'))}** µs; {rate(f.median('records_per_s'))}"


def latency(f: Figures) -> str:
    p50, p99 = (number(f.median(f"{name}_ms")) for name in ("p50", "p99"))
    return f"p50 **{p50}** p99 **{p99}** ms; {rate(f.median('records_per_s'))}"


def memory(f: Figures) -> str:
    return f"{number(f.median('bytes_per_record'))} B"


def lag(f: Figures) -> str:
    return f"{number(f.median('above_p99_ms'))} ms"


def tables(figures: list[Figures]) -> list[str]:
    """In the order in which they stand there."""
    measured = {(f.cell.section, f.cell.column, f.cell.row): f for f in figures if f.counts}

    def cell(show: Callable[[Figures], str], *where: str) -> str:
        return show(measured[where]) if where in measured else ""

    def rows(
        section: str, columns: list[str], clients: list[str], show: Callable[[Figures], str]
    ) -> list[list[str]]:
        return [
            [NAMES.get(row, row), *(cell(show, section, column, row) for column in columns)]
            for row in clients
        ]

    pipelined = rows(THROUGHPUT, SHAPES, PIPELINED, cpu_and_rate)
    for row, client in zip(pipelined, PIPELINED, strict=True):
        row.append(cell(cpu_and_rate, THROUGHPUT_REAL, SHAPES[0], client))
    lags = [[codec, *(cell(lag, LAG, codec, client) for client in (OURS, AIOKAFKA))] for codec in CODECS]
    return [
        markdown(["client", *SHAPES, "100 B, Apache Kafka"], pipelined),
        markdown(["client", *LOOPS], rows(CLOSED_LOOP, LOOPS, AWAITED, latency)),
        markdown(["client", "a record"], rows(MEMORY, SHAPES[:1], WAITING, memory)),
        markdown(["codec", OURS, AIOKAFKA], lags),
    ]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"


def renewed(text: str, figures: list[Figures]) -> str:
    """README.md with the figures of another run. What stands around the tables is written by hand."""
    before, block, after = re.split(f"{BEGIN}|{END}", text)
    fresh = iter(tables(figures))
    block = re.sub(r"(?:^\|.*\n)+", lambda _: next(fresh), block, flags=re.MULTILINE)
    return f"{before}{BEGIN}{block}{END}{after}"
