"""Measures the resources of a long run at regular intervals, and finds those that grow."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aioproducer.records._record_path import spare_memory

WARM_UP = 0.2
"""The share of a run after which nothing may grow."""
MOST = 0.1
"""The largest growth allowed over the rest of the run, as a share of the smallest value."""


@dataclass(frozen=True)
class Sample:
    """The resources in use at one time."""

    seconds: float
    """The time since the run began."""
    held: Mapping[str, float]
    """The amount of each resource."""


def use_malloc_only() -> None:
    """Make Python allocate all its memory with malloc, whose bytes in use can be counted. This restarts the program,
    unless Python already uses only malloc.

    The resident memory of a process does not show growth: if a single small object survives a peak, an allocator
    keeps a whole page for it, and Python's own allocator a whole megabyte."""
    if not _uses_malloc_only():
        os.execve(
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONMALLOC": "malloc"}
        )


def _uses_malloc_only() -> bool:
    return os.environ.get("PYTHONMALLOC") == "malloc"


def of_this_process(seconds: float) -> Sample:
    """Measure this process, on Linux, while an event loop runs in it.

    The memory is what is allocated after use_malloc_only(), and otherwise what is resident. Free memory is returned to
    the system first. The blocks that the producers keep for later batches do not count, because their number is
    limited."""
    gc.collect()
    memory = _allocated() if _uses_malloc_only() else None
    return Sample(
        seconds,
        {
            "MiB of memory": ((_resident() if memory is None else memory) - spare_memory()) / 2**20,
            "sockets": sum(link.startswith("socket:") for link in _descriptors()),
            "tasks": len(asyncio.all_tasks()),
            "objects of the producers": sum(
                str(type(one).__module__).startswith("aioproducer") for one in gc.get_objects()
            ),
        },
    )


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split())
    ]


def _allocated() -> int | None:
    """Return the bytes that malloc has handed out; None with a C library that doesn't count them."""
    try:
        count = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # a library other than glibc, or glibc before 2.33
        return None
    count.restype = _MallInfo
    found = count()
    return int(found.uordblks + found.hblkhd)


def _resident() -> int:
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors() -> Iterator[str]:
    """The target of each descriptor of this process. librdkafka closes its pipes only after some time."""
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists the others
            yield os.readlink(descriptor)


def slope(samples: Sequence[Sample], name: str) -> float:
    """The growth of a resource per second: the slope of the least-squares line."""
    mean_time = sum(sample.seconds for sample in samples) / len(samples)
    mean = sum(sample.held[name] for sample in samples) / len(samples)
    spread = sum((sample.seconds - mean_time) ** 2 for sample in samples)
    together = sum((sample.seconds - mean_time) * (sample.held[name] - mean) for sample in samples)
    return together / spread if spread else 0.0


def steady(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples after the warm-up."""
    end = samples[-1].seconds
    return [sample for sample in samples if sample.seconds >= WARM_UP * end]


def growth(samples: Sequence[Sample]) -> list[str]:
    """Describe each resource that grew after the warm-up by at least one and at least the share MOST."""
    rest = steady(samples)
    time = rest[-1].seconds - rest[0].seconds
    found = []
    for name in rest[0].held:
        grown = slope(rest, name) * time
        before = min(sample.held[name] for sample in rest)
        if grown >= max(MOST * before, 1):
            first, last = rest[0].held[name], rest[-1].held[name]
            found.append(f"{name}: {grown:.1f} more in {time:.0f} s; from {first:.1f} to {last:.1f}")
    return found
