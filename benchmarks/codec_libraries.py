"""CPU time to compress a batch and to compute its checksum, and the compressed size, with each suitable library.

The candidates take turns, in one thread, on JSON lines as in the other measurements. `aioproducer` is what the
producer uses."""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import threading
import time
import zlib
from collections.abc import Callable

import cramjam
import crc32c
import google_crc32c
import lz4.frame
import zstandard

from aioproducer.protocol.compression import Codec, compressor
from job import lines

Run = Callable[[bytes], object]

KIB = 1024
SIZES = [KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB]
LEVELS = [1, 3, 6, 9]
WORK = 1 << 20
"""The approximate number of bytes that a measurement compresses."""


def candidates(level: int) -> dict[tuple[str, str], Run]:
    """Return the functions at this level, by what they do and the name of the library."""

    def cramjam_lz4(data: bytes) -> bytes:
        packer = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        packer.compress(data)
        return bytes(packer.finish())

    return {
        (f"lz4, level {level}", "aioproducer"): compressor(Codec.LZ4, level),
        (f"lz4, level {level}", "lz4"): lambda data: lz4.frame.compress(
            data, level, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
        ),
        (f"lz4, level {level}", "cramjam's Compressor"): cramjam_lz4,
        (f"zstd, level {level}", "aioproducer"): compressor(Codec.ZSTD, level),
        (f"zstd, level {level}", "zstandard"): zstandard.ZstdCompressor(level).compress,
        (f"zstd, level {level}", "cramjam"): lambda data: bytes(cramjam.zstd.compress(data, level)),
        (f"gzip, level {level}", "aioproducer"): compressor(Codec.GZIP, level),
        (f"gzip, level {level}", "cramjam"): lambda data: bytes(cramjam.gzip.compress(data, level)),
        (f"gzip, level {level}", "zlib"): lambda data: zlib.compress(data, level, 31),
        ("CRC-32C", "aioproducer"): crc32c.crc32c,
        ("CRC-32C", "google-crc32c"): google_crc32c.value,
    }


def measured(found: dict[tuple[str, str], Run], data: bytes, rounds: int) -> dict[tuple[str, str], float]:
    """Return the median CPU time of each function in microseconds."""
    times: dict[tuple[str, str], list[float]] = {name: [] for name in found}
    calls = max(WORK // len(data), 1)
    for number in range(rounds):
        for name, run in list(found.items())[:: -1 if number % 2 else 1]:
            run(data)  # the caches then contain the data for each candidate, not only for later ones
            began = time.thread_time()
            for _ in range(calls):
                run(data)
            times[name].append((time.thread_time() - began) / calls * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def releases_the_gil(run: Run, data: bytes) -> bool:
    """Report whether another thread can run during `run`. A busy machine may wake it late, so there are 20 tries."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread that does not release the GIL then keeps it until it ends
    try:
        return any(_run_at_the_same_time(run, data) for _ in range(20))
    finally:
        sys.setswitchinterval(interval)


def _run_at_the_same_time(run: Run, data: bytes) -> bool:
    started, ended = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        run(data)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    at_the_same_time = not ended.is_set()
    thread.join()
    return at_the_same_time


def table(levels: list[int], sizes: list[int], rounds: int) -> str:
    """Measure, and return a Markdown table of microseconds for each size."""
    pattern = b"\n".join(lines(1000))
    data = (pattern * math.ceil(max(sizes) / len(pattern)))[: max(sizes)]
    found = {name: run for level in levels for name, run in candidates(level).items()}
    times = [measured(found, data[:size], rounds) for size in sizes]
    titles = [f"{size // KIB} KiB (µs)" for size in sizes]
    rows = [
        "| | library | " + " | ".join(titles) + " | size | GIL released |",
        "|---|---|" + "---:|" * len(titles) + "---:|---|",
    ]
    for (what, library), run in found.items():
        packed = run(data)
        size = f"{len(packed) / len(data):.1%}" if isinstance(packed, bytes) else ""
        released = "yes" if releases_the_gil(run, data * 8) else "no"
        cells = " | ".join(f"{values[what, library]:.1f}" for values in times)
        rows.append(f"| {what} | {library} | {cells} | {size} | {released} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    parser.add_argument("--levels", type=int, nargs="+", default=LEVELS)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(table(options.levels, SIZES, options.rounds))
    print(f"{sys.version.split()[0]}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
