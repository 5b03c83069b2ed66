"""The resources of one ApacheKafka or SchemaRegistry that must always be released: processes, ports, a directory."""

from __future__ import annotations

import base64
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from aioproducer.testing.apache.broker_setup import ApacheBroker, PortReservation
from aioproducer.testing.apache.process import ChildProcesses


class Resources:
    """Resources held from start to stop. Releasing them awaits nothing, so cancellation can't interrupt it."""

    def __init__(self, chosen_directory: Path | None, owner: str = "Kafka") -> None:
        """Create the directory and start the watchdog; `owner` is the server's name, for messages."""
        self._owner = owner
        self._is_temporary = chosen_directory is None
        prefix = f"aioproducer-{owner.lower()}-"
        self.directory = chosen_directory or Path(tempfile.mkdtemp(prefix=prefix))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.children = ChildProcesses(scratch=self.directory if self._is_temporary else None)
        except BaseException:
            self._discard_directory()
            raise
        self.ports = PortReservation()
        self._is_released = False
        self._count = 0

    def next_number(self) -> int:
        """Return 1, then 2, and so on: numbers that make names unique."""
        self._count += 1
        return self._count

    def cluster_id(self) -> str:
        """Return the cluster id, which stays the same for all brokers whose data is in this directory."""
        file = self.directory / "cluster-id"
        if not file.exists():
            file.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return file.read_text()

    def release(self) -> None:
        """Release everything."""
        with self._ending() as is_ours:
            if is_ours:
                self._discard_directory()

    def release_but_logs(self, brokers: Sequence[ApacheBroker]) -> str | None:
        """Release everything except configuration and logs. Return a sentence that names the directory with the logs.

        If there are no logs, release everything and return None.
        """
        with self._ending() as is_ours:
            if is_ours:
                for broker in brokers if self._is_temporary else ():
                    broker.discard_data()
                if not self._has_logs():
                    self._discard_directory()
        return f"{self._owner}'s logs are kept in {self.directory}" if self._has_logs() else None

    def _has_logs(self) -> bool:
        return next(self.directory.glob("**/*.log"), None) is not None

    @contextlib.contextmanager
    def _ending(self) -> Iterator[bool]:
        """End the processes before the block, and the watchdog after it.

        Yields False if this was already done, or if this process is a fork of the process that must do it. If Ctrl-C
        interrupts the block, the watchdog lives on and removes the temporary directory when this process ends.
        """
        if self._is_released or not self.children.are_ours:
            yield False
            return
        self._is_released = True
        try:
            self.children.kill_all()
            yield True
            self.children.end()
        finally:
            self.ports.release()

    def _discard_directory(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)
