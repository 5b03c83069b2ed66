"""Runs ack_broker.c as a separate process."""

from __future__ import annotations

import json
import subprocess
from types import TracebackType
from typing import Any

import programs


class AckBroker:
    """One running broker, whose counts begin at zero. It is stopped when the `with` block ends."""

    def __init__(self, *options: str) -> None:
        self._options = options

    def __enter__(self) -> AckBroker:
        self._process = subprocess.Popen(
            [str(programs.ack_broker()), *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only the run, which then stops the broker
        )
        self.bootstrap = f"127.0.0.1:{int(self._line().split()[1])}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def counts(self) -> dict[str, Any]:
        """Return records and batches per topic and partition, requests, bytes, and the broker's own CPU seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("counts\n")
        self._process.stdin.flush()
        counts: dict[str, Any] = json.loads(self._line())
        return counts

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"ack_broker ended with status {self._process.wait()}")
        return line
