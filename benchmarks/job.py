"""The input and output of one measurement: a job as JSON in argv, a result as JSON on stdout.

The programs under peers/ (C, Go and Java) read the same jobs, with the same names."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import resource
from dataclasses import asdict, dataclass
from typing import Any

try:
    import uvloop
except ImportError:
    FASTEST_LOOP, new_event_loop = "asyncio", asyncio.new_event_loop
else:
    FASTEST_LOOP, new_event_loop = "uvloop", uvloop.new_event_loop

LINES = 2000  # distinct values

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A measurement, in seconds and bytes: `warm_up` records are sent first, then `records` are measured."""

    kind: str  # pipelined, window, services, transform, columns, encoding, stream, closed_loop, memory, lag or idle
    client: str
    value_size: int = 100
    records: int = 0
    warm_up: int = 0
    window: int = 10_000
    """Records sent before their deliveries are awaited one by one, or the most that may be unacknowledged."""
    tasks: int = 1
    seconds: float = 0
    linger_ms: float | None = 5  # None leaves the client's own default
    batch_size: int | None = 65536  # likewise
    compression: str = "none"
    arrow: bool = False
    keyed: bool = False
    partitions: int = 12
    round_robin: bool = False  # each record to the next partition; else the client chooses
    loop: str = FASTEST_LOOP
    work: str = ""  # for the kinds services and transform: a key of services.WORKS
    over_tls: bool = False
    level: int | None = None  # the compression level; None leaves the client's own default
    processors: int = 0  # franz-go's GOMAXPROCS; 0: all processors
    profile: bool = False
    # Set when the job runs.
    bootstrap: str = ""
    authority: str = ""  # the file with the certificate that the client trusts, if the job runs over TLS
    topic: str = "t"
    source: str = ""  # for the kind transform: the topic that it reads
    values_file: str = ""

    def as_argument(self) -> str:
        """Return the job as a command line argument."""
        return json.dumps(asdict(self))


def lines(size: int) -> list[bytes]:
    """Return distinct JSON-like values of exactly `size` bytes, the same in every run."""
    chance = random.Random(7)
    made = []
    for number in range(LINES):
        text = (
            f'{{"id":{number:07d},"user":{chance.randrange(10**6):06d},"price":{chance.random() * 1000:.4f}'
        )
        while len(text) < size:
            text += f',"k{chance.randrange(100)}":"{chance.getrandbits(40):x}"'
        made.append((text[: size - 1] + "}").encode())
    return made


def cpu_seconds() -> float:
    """Return the user and system time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def per_record(records: int, cpu: float, wall: float) -> Result:
    return {"cpu_us": cpu / records * 1e6, "records_per_s": records / wall}


def latencies_in(seconds: list[float]) -> Result:
    ordered = sorted(seconds)
    return {"p50_ms": quantile(ordered, 0.5) * 1e3, "p99_ms": quantile(ordered, 0.99) * 1e3}


def quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))]


def resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def waiting(before: int, records: int) -> Result:
    """Return the growth of resident memory since `before`, for each of `records` waiting records."""
    return {"bytes_per_record": (resident_bytes() - before) / records, "waiting": records}
