"""Runs test files whenever it is told to, each time in a fork of this process, which has imported pytest already.

Started in the copy of the tree. Each line of its input is a JSON array: the most seconds of processor time that it may
take, then test files. The answer is a line with the exit status of pytest, or TIMED_OUT, and the seconds of processor
time."""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import signal
import sys
import time

TIMED_OUT = -1

PRELOADED = [
    "_hypothesis_pytestplugin",
    "anyio.pytest_plugin",
    "hypothesis.strategies",
    "pytest_asyncio",
    "pytest_timeout",
    "ssl",
    "uvloop",
]
"""Most of the time that a short run of pytest takes. Nothing of aioproducer: each fork has one of its own."""


WALL_TIME_FACTOR = 6
"""A trial may last so many times its processor time: a mutant that waits for ever uses none."""


def in_a_fork(seconds: float, files: list[str]) -> tuple[int, float]:
    """Run pytest on the files as they are now."""
    child = os.fork()
    if child == 0:
        limit = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))  # ends it by SIGXCPU
        os._exit(_pytest(files))
    end = time.monotonic() + WALL_TIME_FACTOR * seconds
    while time.monotonic() < end:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            took = usage.ru_utime + usage.ru_stime
            code = os.waitstatus_to_exitcode(status)
            return (TIMED_OUT if code in (-signal.SIGXCPU, -signal.SIGKILL) else code), took
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMED_OUT, seconds


def _pytest(files: list[str]) -> int:
    import pytest

    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(silence, descriptor)
    early = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are loaded early on purpose
    # With one seed for Hypothesis a mutant meets the same end in each run.
    return int(pytest.main(["-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *early, *files]))


def main() -> None:
    # Cached bytecode of one mutant could be taken for the next one, which may be as long and as old.
    sys.dont_write_bytecode = True
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        seconds, *files = json.loads(line)
        status, took = in_a_fork(seconds, files)
        sys.stdout.write(f"{status} {took:.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
