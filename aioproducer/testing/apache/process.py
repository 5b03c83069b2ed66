"""The operating-system processes of one real Kafka cluster, which are started and ended together.

ApacheKafka uses this module to start its brokers and tools. Run as a script, this file is the watchdog: a small
process at the other end of a pipe. When the test process ends, however suddenly, the watchdog kills the child
processes that are still running. The watchdog imports nothing from this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_KILL_WAIT = 10.0
"""Seconds within which a killed process must end."""
_GATE = ("/bin/sh", "-c", 'read -r go && exec "$@"', "sh")
"""A prefix for a command: a shell that waits for a line of input and then becomes the command that follows.

The shell ends if its input is closed before that."""
_POLL = 0.02
"""Seconds between polls of a process."""


class ChildProcesses:
    """Child processes that never outlive this one.

    They are plain `subprocess` children and belong to no event loop: one loop can start them, and another can end them.
    They run in separate sessions, so that Ctrl-C in a terminal reaches only the parent, which then ends them.

    When this process ends, even by SIGKILL, its pipe to the watchdog closes, and the watchdog kills the children. There
    are two exceptions. A fork of this process that never called exec keeps the pipe open until it also ends. If the
    watchdog is killed, the children can outlive this process.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        """Start the watchdog. It removes the directory `scratch` if this process dies before it calls `end()`."""
        self._owner = os.getpid()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *([str(scratch)] if scratch else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def are_ours(self) -> bool:
        """True in the process that started the children, False in its forks."""
        return os.getpid() == self._owner

    def spawn(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        log: Path,
        output: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `command` in `directory`, and append its output to the file `log`.

        With `output`, only stderr is appended to `log`, and stdout is written to `output`.
        """
        with log.open("ab") as errors, (output or log).open("ab") as printed:
            process = subprocess.Popen(
                [*_GATE, *command],
                cwd=directory,
                env=env,
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=errors,
                start_new_session=True,
            )
        self._running[process.pid] = process
        # The command must not run until the watchdog knows its pid, because this process can die at any moment.
        self._tell(f"+{process.pid}")
        _say(process, "go")
        return process

    async def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until `process` ends, and return its exit code. Cancelling the call leaves the process running."""
        # This polls because a child watcher would belong to one event loop, which the child does not.
        while (code := process.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        self._forget(process)
        return code

    def pause(self, process: subprocess.Popen[bytes]) -> None:
        """Pause `process` (SIGSTOP), and return when all its threads have stopped, or if it has ended.

        Without `os.waitid` (macOS before Python 3.13), its threads may keep running for a few milliseconds.
        """
        process.send_signal(signal.SIGSTOP)
        if process.returncode is None and hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, process: subprocess.Popen[bytes]) -> None:
        """Resume a paused process (SIGCONT)."""
        process.send_signal(signal.SIGCONT)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End `process` immediately, without awaiting."""
        process.kill()
        process.wait(_KILL_WAIT)
        self._forget(process)

    def kill_all(self) -> None:
        """Kill the processes that are still running. This method awaits nothing, so it can't be cancelled."""
        for process in self._running.values():
            process.kill()
        for process in list(self._running.values()):
            self.kill(process)

    def end(self) -> None:
        """Kill the processes that are still running, and end the watchdog without letting it remove `scratch`."""
        self.kill_all()
        _say(self._watchdog, "done")
        self._watchdog.wait(_KILL_WAIT)

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        # The process has been waited for, so the system may reuse its pid.
        if self._running.pop(process.pid, None) is not None:
            self._tell(f"-{process.pid}")

    def _tell(self, line: str) -> None:
        # If the watchdog was killed, the children may outlive this process, but that is no reason to fail a test.
        with contextlib.suppress(OSError, ValueError):
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.write(f"{line}\n".encode())
            self._watchdog.stdin.flush()


def _say(process: subprocess.Popen[bytes], last_word: str) -> None:
    """Write a line to a process and close the pipe, even if the process has already ended."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(f"{last_word}\n".encode())
    with contextlib.suppress(OSError):  # closing flushes the rest
        process.stdin.close()


def watch(lines: Iterable[str], scratch: str | None) -> None:
    """Run the watchdog: read `+pid`, `-pid` or `done`. If the input ends without `done`, kill all remaining
    processes."""
    # A pidfd identifies its process even after the pid has been reused.
    held: dict[int, int | None] = {}
    for line in lines:
        order = line.strip()
        if order == "done":
            return
        pid = int(order[1:])
        if order[0] == "+":
            held[pid] = _pidfd(pid)
        elif (descriptor := held.pop(pid, None)) is not None:
            os.close(descriptor)
    for pid, descriptor in held.items():
        with contextlib.suppress(OSError):
            if descriptor is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel
        return None


if __name__ == "__main__":
    watch(sys.stdin, sys.argv[1] if len(sys.argv) > 1 else None)
