"""The plan of the measurements: one Cell for each figure of a table, in a quick and a full size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import transforming
from job import Job
from programs import FRANZ_GO, JAVA, LIBRDKAFKA
from services import AVRO, WORKS

OURS, AIOKAFKA, AIO, KAFKA_PYTHON = "aioproducer", "aiokafka", "AIOProducer", "kafka-python"
CALLBACK, BATCHES = "confluent-kafka", "produce_batch"
CLIENTS = (OURS, FRANZ_GO, LIBRDKAFKA, JAVA, CALLBACK, BATCHES, AIO, AIOKAFKA, KAFKA_PYTHON)

NULL, REAL = "null", "real"  # targets: the broker that only acknowledges, Apache Kafka

THROUGHPUT, THROUGHPUT_REAL, CODECS = "throughput", "throughput real", "codecs"
WINDOW, WINDOW_REAL = "window", "window real"
CLOSED_LOOP, CLOSED_LOOP_REAL = "closed loop", "closed loop real"
COLUMNS, COLUMNS_REAL, WIRE = "columns", "columns real", "wire"
MEMORY, LAG, PARTITIONS, DISTANCE = "memory", "lag", "partitions", "distance"
SERVICES, TLS = "services", "tls"
WITH_TLS, WITHOUT_TLS = "with TLS", "without"

BARE_STREAM = "asyncio stream"
BARE_LOOP = "bare loop"
BY_DEFAULT = ", its own batch_size"
ON_ASYNCIO = ", asyncio's loop"
ONE_PROCESSOR = ", GOMAXPROCS=1"

# The numbers of records that take each client a little over half a second, so that all processes run equally long.
RECORDS = {
    OURS: 600_000,
    BARE_LOOP: 600_000,
    FRANZ_GO: 1_000_000,
    LIBRDKAFKA: 800_000,
    JAVA: 800_000,
    CALLBACK: 400_000,
    BATCHES: 400_000,
    AIO: 80_000,
    AIOKAFKA: 80_000,
    KAFKA_PYTHON: 40_000,
}
# The numbers of records after which a client's figures are stable: Java has compiled hot code, and Go's heap has
# reached its size.
WARM_UP = {FRANZ_GO: 200_000, JAVA: 1_000_000}
COMPRESSING = ("lz4", "zstd", "gzip", "snappy")


@dataclass(frozen=True)
class Cell:
    """One figure: a row and a column of a section's table, and the job that measures it."""

    section: str
    column: str
    row: str
    job: Job
    repeats: int
    target: str = NULL
    silent: bool = False  # the broker never answers Produce
    delay_ms: int = 0  # before each of its answers

    @property
    def name(self) -> str:
        return f"{self.section}: {self.row}, {self.column}"

    @property
    def needs_real(self) -> bool:
        return self.target == REAL

    def broker_options(self) -> list[str]:
        if self.job.kind == "stream":
            return ["--sink"]
        options = ["--topic", f"{self.job.topic}:{self.job.partitions}"]
        if self.delay_ms:
            options += ["--delay-ms", str(self.delay_ms)]
        return options + (["--silent"] if self.silent else [])


def pipelined(
    client: str,
    share: float = 1.0,
    *,
    kind: str = "pipelined",
    warm_up: int | None = None,
    **settings: object,
) -> Job:
    """Return a pipelined job with a share of the client's usual number of records, in whole windows."""
    job = Job(kind, client, warm_up=0, **settings)  # type: ignore[arg-type]  # the names are Job's
    records = max(1, round(RECORDS[client] * share / job.window)) * job.window
    return replace(job, records=records, warm_up=WARM_UP.get(client, 20_000) if warm_up is None else warm_up)


def throughput(quick: bool) -> list[Cell]:
    cells = []
    for value_size, partitions in ((100, 12), (1000, 12), (100, 1), (1000, 1)):
        column = f"{value_size} B, {partitions} partition{'s' if partitions > 1 else ''}"
        if quick and partitions == 1:
            continue
        floor = () if partitions == 1 else (BARE_LOOP,)
        for client in (*CLIENTS, *floor):
            share = 0.5 if value_size == 1000 else 1
            job = pipelined(client, share, value_size=value_size, partitions=partitions)
            repeats = 2 if quick else 5 if (value_size, partitions) == (100, 12) else 3
            cells.append(Cell(THROUGHPUT, column, client, job, repeats))
            if (value_size, partitions) == (1000, 12) and client in (OURS, FRANZ_GO) and not quick:
                # The sender gathers requests for a broker that answers within a millisecond, as this run's does.
                farther = f"{column}, answers after 2 ms"
                cells.append(Cell(THROUGHPUT, farther, client, job, 3, delay_ms=2))
            if client == OURS and not quick and job.loop != "asyncio":
                plain = replace(job, loop="asyncio")
                cells.append(Cell(THROUGHPUT, column, f"{client}{ON_ASYNCIO}", plain, 3))
            if client in (OURS, AIOKAFKA, CALLBACK) and not quick:
                defaults = replace(job, batch_size=None)
                cells.append(Cell(THROUGHPUT, column, f"{client}{BY_DEFAULT}", defaults, 3))
    return cells


def window(quick: bool, target: str = NULL) -> list[Cell]:
    """Return cells with at most 50,000 unacknowledged records, which is how a service sends."""
    section = WINDOW if target == NULL else WINDOW_REAL
    cells = []
    for value_size in (100,) if quick else (100, 1000):
        for client in (*CLIENTS, BARE_LOOP):
            share = 1.0 if value_size == 100 else 0.5
            job = pipelined(client, share, kind="window", value_size=value_size, window=50_000)
            jobs = {client: job}
            if client == FRANZ_GO:
                jobs[client + ONE_PROCESSOR] = replace(job, processors=1)
            for row, one in jobs.items():
                cells.append(Cell(section, f"{value_size} B", row, one, 1 if quick else 3, target=target))
    return cells


def window_real(quick: bool) -> list[Cell]:
    return [] if quick else window(quick, REAL)


def throughput_real(quick: bool) -> list[Cell]:
    cells = []
    for client in (*CLIENTS, BARE_LOOP):
        job = pipelined(client, 0.5)
        cells.append(
            Cell(THROUGHPUT_REAL, "100 B, 12 partitions", client, job, 1 if quick else 5, target=REAL)
        )
    return cells


# The numbers of 1 KB records that take half a second to compress.
CODEC_RECORDS = {"none": 120_000, "lz4": 100_000, "snappy": 100_000, "zstd": 60_000, "gzip": 32_000}


def codecs(quick: bool) -> list[Cell]:
    cells = []
    for codec in ("none", *COMPRESSING):
        for client in (OURS, FRANZ_GO, JAVA, CALLBACK, AIO, AIOKAFKA):
            if quick and (client == AIO or codec in ("gzip", "snappy")):
                continue
            records = CODEC_RECORDS[codec] // (2 if client in (AIO, AIOKAFKA) else 1)
            warm_up = max(records, 300_000) if client == JAVA else 10_000
            job = Job(
                "pipelined", client, value_size=1000, records=records, warm_up=warm_up, compression=codec
            )
            cells.append(Cell(CODECS, codec, client, job, 1 if quick else 3, target=REAL))
            if codec == "gzip" and client not in (AIO, AIOKAFKA):  # the others' default is 6, and ours is 1
                equal = replace(job, level=6)
                cells.append(Cell(CODECS, "gzip, level 6", client, equal, 3, target=REAL))
    return cells


def columns_job(kind: str, value_size: int, records: int, arrow: bool, keyed: bool = True) -> Job:
    return Job(
        kind,
        OURS,
        value_size=value_size,
        records=records,
        warm_up=200_000,
        arrow=arrow,
        keyed=keyed,
        batch_size=None,
    )


def columns(quick: bool) -> list[Cell]:
    cells = []
    for value_size, keyed in ((100, True), (10, True), (100, False), (1000, True)):
        column = f"{value_size} B, {'with' if keyed else 'no'} key"
        if quick and value_size != 100:
            continue
        for arrow in (False, True):
            data = "Arrow" if arrow else "lists"
            count = 1_000_000 if quick or value_size == 1000 else 4_000_000
            job = columns_job("columns", value_size, count, arrow, keyed)
            repeats = 1 if quick else 5 if (value_size, keyed) == (100, True) else 3
            cells.append(Cell(COLUMNS, column, f"{data}, acknowledged", job, repeats))
            encoding = replace(job, kind="encoding")
            cells.append(Cell(COLUMNS, column, f"{data}, encoded only", encoding, repeats))
    return cells


def columns_real(quick: bool) -> list[Cell]:
    return [
        Cell(
            COLUMNS_REAL,
            "100 B, with key",
            f"{'Arrow' if arrow else 'lists'}, read back",
            columns_job("columns", 100, 600_000, arrow),
            1 if quick else 3,
            target=REAL,
        )
        for arrow in (False, True)
    ]


def wire(quick: bool) -> list[Cell]:
    column, repeats = "1000 B, 1 connection", 2 if quick else 7
    sent = columns_job("columns", 1000, 1_000_000, arrow=True, keyed=False)
    bare = replace(sent, kind="stream", client=BARE_STREAM)
    return [Cell(WIRE, column, OURS, sent, repeats), Cell(WIRE, column, BARE_STREAM, bare, repeats)]


def tls(quick: bool) -> list[Cell]:
    """Return cells of 1 KB values with and without TLS, and those of a bare stream that writes the same bytes."""
    cells = []
    for over_tls in (True, False):
        column, repeats = WITH_TLS if over_tls else WITHOUT_TLS, 2 if quick else 3
        bare = replace(
            columns_job("stream", 1000, 400_000, arrow=True, keyed=False),
            client=BARE_STREAM,
            batch_size=65536,
            over_tls=over_tls,
        )
        cells.append(Cell(TLS, column, BARE_STREAM, bare, repeats))
        for client in (OURS,) if quick else (OURS, FRANZ_GO, JAVA, CALLBACK, AIOKAFKA):
            job = pipelined(client, 0.5, value_size=1000, over_tls=over_tls)
            cells.append(Cell(TLS, column, client, job, repeats))
    return cells


# The numbers of records in the closed loop, with one task and with a thousand.
LOOP_RECORDS = {
    OURS: (4_000, 200_000),
    FRANZ_GO: (8_000, 200_000),
    JAVA: (8_000, 60_000),
    AIOKAFKA: (3_000, 60_000),
    AIO: (20, 10_000),  # with one task, each record takes a tenth of a second
    KAFKA_PYTHON: (2_000, 0),
}


def closed_loop_job(client: str, tasks: int, linger_ms: float | None, share: float = 1.0) -> Job:
    count = int(LOOP_RECORDS[client][tasks > 1] * share)
    warm_up = count if client == JAVA else max(1, count // 5)
    return Job(
        "closed_loop",
        client,
        records=count,
        warm_up=warm_up,
        tasks=tasks,
        linger_ms=linger_ms,
        batch_size=None if linger_ms is None else 65536,
    )


def closed_loop(quick: bool) -> list[Cell]:
    cells = []
    for tasks, linger in ((1, 0), (1000, 0), (1000, None)):
        setting = "its defaults" if linger is None else f"linger {linger} ms"
        column = f"{tasks:,} task{'s' if tasks > 1 else ''}, {setting}"
        for client, counts in LOOP_RECORDS.items():
            if not counts[tasks > 1] or (quick and client in (AIO, KAFKA_PYTHON)):
                continue
            job = closed_loop_job(client, tasks, linger, 0.5 if quick else 1)
            cells.append(Cell(CLOSED_LOOP, column, client, job, 2 if quick else 3 if client == AIO else 5))
    return cells


def closed_loop_real(quick: bool) -> list[Cell]:
    cells = []
    for client in (OURS, FRANZ_GO, JAVA, AIOKAFKA, KAFKA_PYTHON):
        job = closed_loop_job(client, 1, 0)
        cells.append(
            Cell(CLOSED_LOOP_REAL, "1 task, linger 0 ms", client, job, 2 if quick else 5, target=REAL)
        )
    return cells


def memory(quick: bool) -> list[Cell]:
    cells = []
    for client in (OURS, FRANZ_GO, LIBRDKAFKA, JAVA, CALLBACK, AIO, AIOKAFKA):
        if quick and client == AIO:
            continue
        # aiokafka keeps only one open batch per partition, so many records can wait only in a huge batch.
        job = Job(
            "memory",
            client,
            records=150_000 if quick else 500_000,
            warm_up=20_000,
            batch_size=16 << 20 if client == AIOKAFKA else 65536,
        )
        cells.append(Cell(MEMORY, "100 B, 12 partitions", client, job, 1 if quick else 3, silent=True))
    return cells


def lag(quick: bool) -> list[Cell]:
    cells = []
    for codec in ("none", "zstd") if quick else ("none", *COMPRESSING):
        for client in (OURS,) if quick else (OURS, AIOKAFKA):
            job = Job("lag", client, value_size=1000, batch_size=1_000_000, compression=codec, partitions=4)
            job = replace(job, seconds=1.5 if quick else 3)
            cells.append(Cell(LAG, codec, client, job, 2 if quick or client != OURS else 3))
    return cells


# The numbers of records, by number of partitions, that take a client at least half a second. With many partitions,
# the window determines how many records a batch has, so it is the same for each client.
MANY_PARTITIONS = {1000: 400_000, 10_000: 200_000}
SPREAD_RECORDS = {
    OURS: 600_000,
    FRANZ_GO: 1_000_000,
    LIBRDKAFKA: 800_000,
    JAVA: 600_000,
    CALLBACK: 300_000,
    AIOKAFKA: 60_000,
}


def partitions(quick: bool) -> list[Cell]:
    """Return cells that send round robin, with batches of 16 KiB and up to 100,000 records in flight."""
    cells = []
    for count in (1, 100, 1000, 10_000):
        if quick and count in (1, 100):
            continue
        for client, usual in SPREAD_RECORDS.items():
            records = MANY_PARTITIONS.get(count, usual)
            job = Job(
                "pipelined",
                client,
                records=records,
                warm_up=min(records, WARM_UP.get(client, 100_000)),
                window=100_000,
                batch_size=16_384,
                partitions=count,
                round_robin=True,
            )
            repeats = 1 if quick else 2 if client == AIOKAFKA else 3
            if client == AIOKAFKA and count == 10_000:  # each record takes aiokafka half a millisecond
                job, repeats = replace(job, records=job.window, warm_up=0), 1
            cells.append(Cell(PARTITIONS, f"{count:,}", client, job, repeats))
    return cells


def distance(quick: bool) -> list[Cell]:
    """Return cells with a broker 20 ms away, one partition, and always more to send than the window allows."""
    cells = []
    for client in (OURS, FRANZ_GO, LIBRDKAFKA, JAVA, CALLBACK, AIOKAFKA):
        count = (30_000 if client in (AIOKAFKA, CALLBACK) else 100_000) * (1 if quick else 2)
        job = Job("pipelined", client, records=count, warm_up=20_000, window=count, partitions=1)
        cells.append(Cell(DISTANCE, "100 B, 20 ms", client, job, 1 if quick else 3, delay_ms=20))
    return cells


def services(quick: bool) -> list[Cell]:
    cells = []
    for work in WORKS:
        for client in (OURS, AIOKAFKA, CALLBACK):
            # A traced record costs many times as much as an untraced one.
            share = (0.25 if quick else 0.5) * (0.2 if WORKS[work].sampler else 1)
            job = replace(pipelined(client, share), kind="services", work=work)
            cells.append(Cell(SERVICES, work, client, job, 1 if quick else 5))
    for client in (OURS, AIOKAFKA, CALLBACK):
        count = 20_000 if quick else 60_000
        job = Job("transform", client, records=count, warm_up=10_000, window=1000, work=AVRO)
        cells.append(Cell(SERVICES, transforming.COLUMN, client, job, 1 if quick else 5, target=REAL))
    return cells


SECTIONS: dict[str, Callable[[bool], list[Cell]]] = {
    THROUGHPUT: throughput,
    WINDOW: window,
    SERVICES: services,
    CLOSED_LOOP: closed_loop,
    COLUMNS: columns,
    WIRE: wire,
    TLS: tls,
    PARTITIONS: partitions,
    DISTANCE: distance,
    MEMORY: memory,
    LAG: lag,
    THROUGHPUT_REAL: throughput_real,
    WINDOW_REAL: window_real,
    CLOSED_LOOP_REAL: closed_loop_real,
    COLUMNS_REAL: columns_real,
    CODECS: codecs,
}


def cells(quick: bool, sections: list[str], clients: list[str]) -> list[Cell]:
    """Return the cells of a run, in the order of its tables."""
    wanted = {*clients, BARE_STREAM, BARE_LOOP}
    return [cell for section in sections for cell in SECTIONS[section](quick) if cell.job.client in wanted]
