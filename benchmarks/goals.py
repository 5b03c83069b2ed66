"""The goals P1 to P13, checked against the medians of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from figures import Figures, number, unique
from plan import (
    AIO,
    AIOKAFKA,
    BARE_LOOP,
    BARE_STREAM,
    CALLBACK,
    CLOSED_LOOP,
    CLOSED_LOOP_REAL,
    CODECS,
    COLUMNS,
    COLUMNS_REAL,
    DISTANCE,
    LAG,
    MEMORY,
    ONE_PROCESSOR,
    OURS,
    PARTITIONS,
    SERVICES,
    THROUGHPUT,
    THROUGHPUT_REAL,
    TLS,
    WINDOW,
    WINDOW_REAL,
    WIRE,
    WITH_TLS,
    WITHOUT_TLS,
)
from programs import FRANZ_GO, JAVA
from services import BYTES, HEADER, JSON, ORJSON, TEXT, WORKS

MET, NOT_MET, NOT_MEASURED = "met", "NOT MET", "not measured"

MILLION = 1e6


@dataclass(frozen=True)
class Check:
    """One comparison. A `ratio` above 1 is the factor by which the bound is missed; None means not measured."""

    what: str
    ratio: float | None
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return NOT_MEASURED
        return MET if self.ratio <= 1 else NOT_MET

    def line(self) -> str:
        missed = f", missed by {self.ratio:.2f}x" if self.ratio is not None and self.ratio > 1 else ""
        verdict = f"**{self.verdict}**" if self.verdict == NOT_MET else self.verdict
        return f"{self.what}: {verdict}{missed}{' (' + self.detail + ')' if self.detail else ''}"


@dataclass(frozen=True)
class Goal:
    name: str
    sentence: str
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> str:
        """NOT MET if a check fails; met if all are measured and met."""
        verdicts = {check.verdict for check in self.checks}
        if NOT_MET in verdicts:
            return NOT_MET
        return MET if verdicts == {MET} else NOT_MEASURED

    def lines(self) -> list[str]:
        return [f"- {self.name} {self.sentence}: **{self.verdict}**"] + [
            f"  - {check.line()}" for check in self.checks
        ]


class Found:
    """The figures of a run, by section, row and column."""

    def __init__(self, figures: Iterable[Figures]) -> None:
        self._figures = {(f.cell.section, f.cell.row, f.cell.column): f for f in figures}

    def median(self, section: str, row: str, column: str, name: str) -> float | None:
        """Return the median of one figure, infinity if its measurement failed, or None if it was not measured."""
        f = self._figures.get((section, row, column))
        if f is None or not (f.results or f.failures):
            return None
        return f.median(name) if f.counts else float("inf")

    def columns(self, section: str) -> list[str]:
        return unique(column for found, _, column in self._figures if found == section)

    def to_peer(
        self,
        section: str,
        column: str,
        peer: str,
        name: str,
        times: float = 1.0,
        *,
        at_least: bool = False,
        strictly: bool = False,
    ) -> Check:
        """Compare our figure with `times` a peer's, as an upper bound or, with `at_least`, a lower bound."""
        relation = "at least" if at_least else "below" if strictly else "at most"
        factor = "" if times == 1 else f"{times:.3g}x "
        client, _, setting = peer.partition(", ")
        whose = f"{client}'s with {setting}" if setting else f"{client}'s"
        what = f"{section}, {column}: {UNITS[name][0]} {relation} {factor}{whose}"
        ours = self.median(section, OURS, column, name)
        theirs = self.median(section, peer, column, name)
        if theirs is None or theirs == float("inf") or ours is None:
            return Check(what, None)
        if ours == float("inf"):
            return Check(what, float("inf"), "the measurement failed")
        bound = times * theirs
        ratio = bound / ours if at_least else ours / bound
        if strictly and ratio == 1:
            ratio = 1.0000001
        shown = UNITS[name][1]
        detail = f"{shown(ours)} vs. {shown(theirs)}: {ours / theirs:.2f}x"
        floor = self.median(section, BARE_LOOP, column, name)
        if ratio > 1 and floor is not None and floor != float("inf"):
            detail += f"; the bare loop: {shown(floor)}, {floor / theirs:.2f}x"
        return Check(what, ratio, detail)

    def to_bound(
        self, section: str, row: str, column: str, name: str, bound: float, *, at_least: bool = False
    ) -> Check:
        """Compare our figure with a fixed bound."""
        told, shown = UNITS[name]
        what = f"{section}, {row}, {column}: {told} {'at least' if at_least else 'at most'} {shown(bound)}"
        ours = self.median(section, row, column, name)
        if ours is None:
            return Check(what, None)
        if ours == float("inf"):
            return Check(what, float("inf"), "the measurement failed")
        ratio = bound / ours if at_least else max(ours, 0) / bound
        return Check(what, ratio, shown(ours))

    def overhead(self, work: str, times: float) -> Check:
        """Compare the CPU that a service's work adds to plain bytes with `times` the CPU of plain bytes."""
        what = f"{SERVICES}, {work}: CPU added to that of bytes at most {times:.3g}x the CPU of bytes"
        ours = self.median(SERVICES, OURS, work, "client_us")
        plain = self.median(SERVICES, OURS, BYTES, "client_us")
        if ours is None or plain is None or plain == float("inf"):
            return Check(what, None)
        if ours == float("inf"):
            return Check(what, float("inf"), "the measurement failed")
        above = ours - plain
        detail = f"{microseconds(above)} vs. {microseconds(plain)}: {above / plain:.2f}x"
        return Check(what, max(above, 0) / (times * plain), detail)

    def added(self, row: str, times: float) -> Check:
        """Compare what TLS adds to a client's CPU with `times` the CPU of a bare stream over TLS."""
        what = f"{TLS}, {row}: TLS adds at most {times:.3g}x the CPU of a bare stream over TLS"
        with_tls, without = (self.median(TLS, row, column, "cpu_us") for column in (WITH_TLS, WITHOUT_TLS))
        bare = self.median(TLS, BARE_STREAM, WITH_TLS, "cpu_us")
        if with_tls is None or without is None or bare is None or float("inf") in (without, bare):
            return Check(what, None)
        adds = with_tls - without
        detail = f"{microseconds(adds)} vs. {microseconds(bare)}: {adds / bare:.2f}x"
        return Check(what, max(adds, 0) / (times * bare), detail)

    def busy(self, section: str, column: str, least: float) -> Check:
        """Check that our process keeps at least `least` of a processor busy: rate times CPU per record."""
        what = f"{section}, {column}: at least {least:.2f} of a processor busy"
        rate = self.median(section, OURS, column, "records_per_s")
        cpu = self.median(section, OURS, column, "cpu_us")
        if rate is None or cpu is None:
            return Check(what, None)
        if cpu == float("inf"):
            return Check(what, float("inf"), "the measurement failed")
        found = rate * cpu / MILLION
        return Check(what, least / found, f"{found:.2f}")

    def happened(self, section: str, row: str, column: str) -> Check:
        """Check that the measurement succeeded; it fails if a record is missing from the log."""
        what = f"{section}, {row}, {column}: the log contains what was sent"
        rate = self.median(section, row, column, "records_per_s")
        if rate is None or rate != float("inf"):
            return Check(what, None if rate is None else 0, "" if rate is None else per_second(rate))
        return Check(what, float("inf"), "the measurement failed")


def microseconds(value: float) -> str:
    return f"{number(value)} µs"


def milliseconds(value: float) -> str:
    return f"{number(value)} ms"


def per_second(value: float) -> str:
    return f"{value / MILLION:.2f}M/s" if value >= MILLION else f"{value / 1e3:.3g}k/s"


def per_core(cpu_us: float) -> str:
    return f"{number(cpu_us)} µs ({per_second(MILLION / cpu_us)} per core)"


UNITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "cpu_us": ("CPU", microseconds),
    "client_us": ("CPU without the user's function", microseconds),
    "records_per_s": ("rate", per_second),
    "p50_ms": ("p50", milliseconds),
    "p99_ms": ("p99", milliseconds),
    "lag_p99_ms": ("p99 lag", milliseconds),
    "lag_max_ms": ("maximum lag", milliseconds),
    "bytes_per_record": ("memory", lambda value: f"{number(value)} B"),
}

HEADLINE, KILOBYTE = "100 B, 12 partitions", "1000 B, 12 partitions"
KEYED = "100 B, with key"
LOOPS = ("1,000 tasks, linger 0 ms", "1,000 tasks, its defaults")
ONE_TASK = "1 task, linger 0 ms"


def goals(figures: Iterable[Figures]) -> list[Goal]:
    found = Found(figures)
    peer, bound = found.to_peer, found.to_bound
    return [
        Goal(
            "P1",
            "pipelined records of 100 B, each with a future, cost at most franz-go's CPU",
            tuple(
                check
                for section in (THROUGHPUT, THROUGHPUT_REAL)
                for check in (
                    peer(section, HEADLINE, FRANZ_GO, "cpu_us"),
                    peer(section, HEADLINE, JAVA, "cpu_us", strictly=True),
                    peer(section, HEADLINE, CALLBACK, "cpu_us", 0.4),
                    peer(section, HEADLINE, AIOKAFKA, "cpu_us", 1 / 14),
                )
            ),
        ),
        Goal(
            "P2",
            "1,000 tasks that await each record reach franz-go's rate at no more CPU, and five times aiokafka's rate",
            tuple(
                check
                for column in LOOPS
                for check in (
                    peer(CLOSED_LOOP, column, FRANZ_GO, "records_per_s", at_least=True),
                    peer(CLOSED_LOOP, column, FRANZ_GO, "cpu_us"),
                    peer(CLOSED_LOOP, column, AIOKAFKA, "records_per_s", 5, at_least=True),
                    peer(CLOSED_LOOP, column, AIOKAFKA, "p99_ms", 1 / 3),
                )
            ),
        ),
        Goal(
            "P3",
            "one task that awaits each record has a lower latency than with aiokafka or Java",
            tuple(
                check
                for section, times in ((CLOSED_LOOP, 0.7), (CLOSED_LOOP_REAL, 0.6))
                for check in (
                    peer(section, ONE_TASK, AIOKAFKA, "p50_ms", times),
                    peer(section, ONE_TASK, AIOKAFKA, "p99_ms", times),
                    peer(section, ONE_TASK, JAVA, "p50_ms"),
                )
            ),
        ),
        Goal(
            "P4",
            "send_many encodes 4M records/s per core from lists and 30M from Arrow; 3M and 6M are acknowledged",
            (
                bound(COLUMNS, "lists, encoded only", KEYED, "cpu_us", 1 / 4),
                bound(COLUMNS, "Arrow, encoded only", KEYED, "cpu_us", 1 / 30),
                bound(COLUMNS, "lists, acknowledged", KEYED, "records_per_s", 3 * MILLION, at_least=True),
                bound(COLUMNS, "Arrow, acknowledged", KEYED, "records_per_s", 6 * MILLION, at_least=True),
                found.happened(COLUMNS_REAL, "lists, read back", KEYED),
                found.happened(COLUMNS_REAL, "Arrow, read back", KEYED),
            ),
        ),
        Goal(
            "P5",
            "pipelined records of 1 KB cost at most franz-go's CPU, and one connection reaches 80% of a bare stream's "
            "rate",
            (
                peer(THROUGHPUT, KILOBYTE, FRANZ_GO, "cpu_us"),
                peer(WIRE, "1000 B, 1 connection", BARE_STREAM, "records_per_s", 0.8, at_least=True),
            ),
        ),
        Goal(
            "P6",
            "a waiting record of 100 B takes up at most 180 B of memory",
            (bound(MEMORY, OURS, HEADLINE, "bytes_per_record", 180),),
        ),
        Goal(
            "P7",
            "at full load, the loop's lag is at most 2 ms (p99) and 10 ms (max) with each codec",
            tuple(
                check
                for codec in found.columns(LAG) or ["zstd"]
                for check in (
                    bound(LAG, OURS, codec, "lag_p99_ms", 2),
                    bound(LAG, OURS, codec, "lag_max_ms", 10),
                )
            ),
        ),
        Goal(
            "P8",
            "a record costs at most 0.8 µs of CPU with 1,000 partitions and 2 µs with 10,000, and less than with the "
            "other clients",
            tuple(
                check
                for column, most in (("1,000", 0.8), ("10,000", 2.0))
                for check in (
                    bound(PARTITIONS, OURS, column, "cpu_us", most),
                    *(
                        peer(PARTITIONS, column, client, "cpu_us", strictly=True)
                        for client in (FRANZ_GO, JAVA, CALLBACK, AIOKAFKA)
                    ),
                )
            ),
        ),
        Goal(
            "P9",
            "with one partition on a broker 20 ms away, the rate is at least 4.5 times aiokafka's",
            (peer(DISTANCE, "100 B, 20 ms", AIOKAFKA, "records_per_s", 4.5, at_least=True),),
        ),
        Goal(
            "P10",
            "with each codec, records of 1 KB, read back from a real broker, cost less CPU than with the other clients",
            tuple(
                peer(CODECS, codec, client, "cpu_us", strictly=True)
                for codec in found.columns(CODECS) or ["lz4"]
                if codec != "none"
                for client in (FRANZ_GO, JAVA, CALLBACK, AIO, AIOKAFKA)
            ),
        ),
        Goal(
            "P11",
            "serializers add at most half the CPU of plain bytes, and an interceptor at most 1.1 times that CPU; "
            "all work costs less than with the other clients",
            (
                *(found.overhead(work, 0.5) for work in (TEXT, ORJSON, JSON)),
                found.overhead(HEADER, 1.1),
                *(
                    peer(SERVICES, work, client, "client_us", strictly=True)
                    for work in WORKS
                    for client in (AIOKAFKA, CALLBACK)
                ),
            ),
        ),
        Goal(
            "P12",
            "with at most 50,000 unacknowledged records: at most 1.1 times franz-go's CPU, at least 0.8 times its rate "
            "on one processor, and a loop that is at least 90% busy",
            tuple(
                check
                for section in (WINDOW, WINDOW_REAL)
                for column in found.columns(section) or ["100 B"]
                for check in (
                    peer(section, column, FRANZ_GO, "cpu_us", 1.1),
                    peer(section, column, FRANZ_GO + ONE_PROCESSOR, "records_per_s", 0.8, at_least=True),
                    found.busy(section, column, 0.9),
                )
            ),
        ),
        Goal(
            "P13", "TLS adds at most 1.2 times the CPU of a bare stream over TLS", (found.added(OURS, 1.2),)
        ),
    ]
