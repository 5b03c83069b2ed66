"""Runs test files on request, each time in a fork of this process, which has already imported pytest.

The program is started in the copy of the tree. Each line of its input is a JSON array: the processor-time limit in
seconds, then arguments for pytest, such as test files. It answers with a line that contains pytest's exit status, or
TIMED_OUT, and the seconds of processor time."""

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
"""Imports that take most of the time of a short pytest run. aioproducer is not among them: each fork imports its own
copy."""


WALL_TIME_FACTOR = 6
"""The limit on a trial's wall time, as a multiple of its processor-time limit, which a waiting mutant never reaches."""


def in_a_fork(seconds: float, arguments: list[str]) -> tuple[int, float]:
    """Run pytest on the current files of the copy."""
    child = os.fork()
    if child == 0:
        limit = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))  # ends it with SIGXCPU
        os._exit(_pytest(arguments))
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


WAITING = "--timeout=30"
"""A test that a mutant makes wait forever takes no processor time, so it needs a limit of its own."""


def _pytest(arguments: list[str]) -> int:
    import pytest

    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(silence, descriptor)
    early = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are deliberately loaded early
    # With a fixed seed for Hypothesis a mutant has the same result in each run.
    return int(
        pytest.main(["-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", WAITING, *early, *arguments])
    )


def main() -> None:
    # Bytecode cached for one mutant could be used for the next one, which may have the same size and modification time.
    sys.dont_write_bytecode = True
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        seconds, *arguments = json.loads(line)
        status, took = in_a_fork(seconds, arguments)
        sys.stdout.write(f"{status} {took:.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
