"""What is measured: one Cell for each figure of a table, in a quick and a full size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from measure import Job

OURS, AIOKAFKA, CALLBACK, AIO = "aioproducer", "aiokafka", "confluent-kafka", "AIOProducer"

THROUGHPUT, COLUMNS, CLOSED_LOOP, MEMORY, LAG = "throughput", "columns", "closed loop", "memory", "lag"

# Records that take each client a good half second, so that every process runs about as long.
RECORDS = {OURS: 600_000, AIOKAFKA: 80_000, CALLBACK: 400_000, AIO: 80_000}


@dataclass(frozen=True)
class Cell:
    """One figure: a row and a column of a section's table, and the job that gives it."""

    section: str
    column: str
    row: str
    job: Job
    partitions: int
    repeats: int
    silent: bool = False

    @property
    def name(self) -> str:
        return f"{self.section}: {self.row}, {self.column}"

    def broker_options(self) -> list[str]:
        return ["--topic", f"t:{self.partitions}", *(["--silent"] if self.silent else [])]


BY_DEFAULT = ", its own batch_size"


def throughput(quick: bool) -> list[Cell]:
    cells = []
    for value_size, partitions in ((100, 12), (100, 1), (1000, 12), (1000, 1)):
        column = f"{value_size} B, {partitions} partition{'s' if partitions > 1 else ''}"
        headline = (value_size, partitions) == (100, 12)
        for client, records in RECORDS.items():
            count = records // (2 if value_size == 1000 else 1)
            job = Job("pipelined", client, value_size=value_size, records=count, warm_up=20_000)
            repeats = (3 if headline else 1) if quick else 5
            if quick and client == AIO and not headline:
                continue
            cells.append(Cell(THROUGHPUT, column, client, job, partitions, repeats))
            if client != AIO and not quick:
                defaults = replace(job, batch_size=None)
                cells.append(Cell(THROUGHPUT, column, f"{client}{BY_DEFAULT}", defaults, partitions, 3))
            if client == OURS and not quick:
                plain = replace(job, loop="asyncio")
                cells.append(Cell(THROUGHPUT, column, f"{OURS}, asyncio's loop", plain, partitions, 3))
    return cells


def columns(quick: bool) -> list[Cell]:
    cells = []
    for value_size, keyed in ((10, True), (100, True), (100, False), (1000, True)):
        column = f"{value_size} B, {'with' if keyed else 'no'} key"
        for arrow in (False, True):
            data = "Arrow" if arrow else "lists"
            count = 1_000_000 if quick or value_size == 1000 else 4_000_000
            job = Job(
                "columns",
                OURS,
                value_size=value_size,
                records=count,
                warm_up=200_000,
                arrow=arrow,
                keyed=keyed,
                batch_size=None,
            )
            repeats = 1 if quick else 5
            cells.append(Cell(COLUMNS, column, f"{data}, acknowledged", job, 12, repeats))
            encoding = replace(job, kind="encoding", batch_size=262_144)
            cells.append(Cell(COLUMNS, column, f"{data}, encoded only", encoding, 12, repeats))
    return cells


def closed_loop(quick: bool) -> list[Cell]:
    cells = []
    for tasks, linger in ((1, 0), (1000, 0), (1000, 5)):
        column = f"{tasks:,} task{'s' if tasks > 1 else ''}, linger {linger} ms"
        for client in (OURS, AIOKAFKA, AIO):
            if quick and client == AIO:
                continue
            count = (3_000 if tasks == 1 else 60_000) // (2 if quick else 1)
            if client == AIO:  # a tenth of a second for each record of one task
                count = 20 if tasks == 1 else 10_000
            job = Job(
                "closed_loop", client, records=count, warm_up=count // 10 or 1, tasks=tasks, linger_ms=linger
            )
            cells.append(Cell(CLOSED_LOOP, column, client, job, 12, 3 if quick or client == AIO else 5))
    return cells


def memory(quick: bool) -> list[Cell]:
    cells = []
    for client in (OURS, CALLBACK, AIOKAFKA, AIO):
        if quick and client == AIO:
            continue
        # aiokafka holds one open batch per partition and no more, so only a huge one lets that many wait.
        job = Job(
            "memory",
            client,
            records=150_000 if quick else 400_000,
            warm_up=20_000,
            batch_size=16 << 20 if client == AIOKAFKA else 65536,
        )
        cells.append(Cell(MEMORY, "100 B, 12 partitions", client, job, 12, 1 if quick else 3, silent=True))
    return cells


def lag(quick: bool) -> list[Cell]:
    cells = []
    for codec in ("none", "zstd") if quick else ("none", "zstd", "gzip", "lz4", "snappy"):
        for client in (OURS,) if quick else (OURS, AIOKAFKA):
            job = Job("lag", client, value_size=1000, batch_size=1_000_000, compression=codec)
            job = replace(job, seconds=1.5 if quick else 3)
            repeats = 2 if quick else 5 if client == OURS and codec == "zstd" else 3
            cells.append(Cell(LAG, codec, client, job, 4, repeats))
    return cells


SECTIONS = {THROUGHPUT: throughput, COLUMNS: columns, CLOSED_LOOP: closed_loop, MEMORY: memory, LAG: lag}


def cells(quick: bool, sections: list[str], clients: list[str]) -> list[Cell]:
    """The cells of a run, in the order of its tables."""
    return [cell for section in sections for cell in SECTIONS[section](quick) if cell.job.client in clients]
