"""ack_broker.c, built once per change and run as another process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCE = Path(__file__).with_name("ack_broker.c")
PROGRAM = SOURCE.parent / "build" / "ack_broker"


def build() -> Path:
    """Compile the broker if its source is newer than the program."""
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(exist_ok=True)
        fresh = PROGRAM.with_suffix(".new")
        subprocess.run(["cc", "-O2", "-o", str(fresh), str(SOURCE)], check=True)
        fresh.replace(PROGRAM)  # a broker that runs keeps the old file
    return PROGRAM


class AckBroker:
    """One running broker; `with` ends it. Its counts begin at zero."""

    def __init__(self, *options: str) -> None:
        self._options = options

    def __enter__(self) -> AckBroker:
        self._process = subprocess.Popen(
            [str(build()), *self._options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
        """Records and batches per topic and partition, requests, bytes, and the broker's own CPU seconds."""
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
