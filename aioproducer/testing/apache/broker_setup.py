"""The addresses, files and settings of one real broker. This module starts no processes."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aioproducer.testing.apache.listeners import CONTROLLER, INTERNAL, Listener, Setting, protocol_map

HOST = "127.0.0.1"
_MOST_CONTROLLERS = 5

# Limits for the log excerpt in an error text.
_ERRORS = 3
_LINES_OF_AN_ERROR = 6
_LINES_BEHIND_ERRORS = 5
_LINES_WITHOUT_ERRORS = 30


class PortReservation:
    """Ports on 127.0.0.1 that are reserved for the brokers until `release()`, even while a broker is down.

    On Linux, two sockets can share a port if both allow it and neither is listening yet. A bound socket therefore keeps
    the system from assigning its port to another program, or to a client (which could then connect to itself), but the
    broker can still listen on the port. On other systems, ports are reserved only until the brokers start.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def reserve(self, port: int = 0) -> int:
        """Reserve `port`, or any free port if it is 0. Raises OSError if `port` is in use."""
        holder = socket.socket()
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, port))
        except OSError as error:
            holder.close()
            raise OSError(error.errno, f"port {port} on {HOST} is not available") from error
        self._sockets.append(holder)
        return int(holder.getsockname()[1])

    def before_listening(self) -> None:
        """Prepare for the brokers to listen: release the ports on systems where the reservation would prevent that."""
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


@dataclass(eq=False)
class ApacheBroker:
    """One broker: its fixed addresses and files, and its current process, if any."""

    id: int
    directory: Path
    ports: Mapping[str, int]
    """The port of each listener: CLIENT, INTERNAL, CONTROLLER and those that the user declared."""
    advertised: Mapping[str, tuple[str, int]]
    """The address that each listener advertises to clients. A listener without an entry advertises its own address."""
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False
    logged_before: int = 0
    """The size of the log, in bytes, when the current process was started."""

    @property
    def internal_port(self) -> int:
        return self.ports[INTERNAL]

    def address(self, listener: str) -> tuple[str, int]:
        """Return the address that this listener advertises to clients."""
        return self.advertised.get(listener, (HOST, self.ports[listener]))

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def scratch(self) -> Path:
        """The directory into which the JVM unpacks files instead of the system's temporary directory."""
        return self.directory / "tmp"

    @property
    def is_formatted(self) -> bool:
        return (self.data / "meta.properties").exists()

    @property
    def running(self) -> subprocess.Popen[bytes] | None:
        """The process, or None if it was not started or has ended."""
        return self.process if self.process is not None and self.process.poll() is None else None

    def before_start(self) -> None:
        """Prepare for a new process: note where its part of the log begins."""
        self.logged_before = self.log.stat().st_size if self.log.exists() else 0
        self.is_paused = False

    def what_went_wrong(self) -> str:
        """Return the errors that the last process logged, and the last lines of its log."""
        return what_went_wrong(self.log, self.logged_before)

    def write_files(
        self,
        voters: Sequence[ApacheBroker],
        brokers: int,
        listeners: tuple[Listener, ...],
        config: Mapping[str, Setting],
    ) -> None:
        """Create the broker's directory, and write its server.properties."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        settings = {**self._own_settings(voters, listeners), **_shared_settings(brokers)}
        for listener in listeners:
            settings |= listener.broker_settings()
        settings |= config
        lines = (f"{key}={_escaped(as_text(value))}\n" for key, value in settings.items())
        self.properties.write_text("".join(lines), encoding="ascii")

    def _own_settings(
        self, voters: Sequence[ApacheBroker], listeners: tuple[Listener, ...]
    ) -> dict[str, Setting]:
        names = [*(listener.name for listener in listeners), INTERNAL]
        is_voter = self in voters
        bound = [*names, CONTROLLER] if is_voter else names
        return {
            "node.id": self.id,
            "process.roles": "broker,controller" if is_voter else "broker",
            "listeners": ",".join(f"{name}://{HOST}:{self.ports[name]}" for name in bound),
            "advertised.listeners": ",".join(
                f"{name}://{host}:{port}" for name in names for host, port in [self.address(name)]
            ),
            "listener.security.protocol.map": protocol_map(listeners),
            "controller.quorum.voters": ",".join(f"{v.id}@{HOST}:{v.ports[CONTROLLER]}" for v in voters),
            "log.dirs": str(self.data),
        }

    def discard_data(self) -> None:
        """Remove everything except configuration and logs."""
        for directory in (self.data, self.scratch):
            shutil.rmtree(directory, ignore_errors=True)


def what_went_wrong(log: Path, since: int = 0) -> str:
    """Return the first errors in a broker's log, each with the lines that follow it, and the last lines.

    A broker logs the shutdown of all its components, so the cause may be a hundred lines before the end. The part of
    the log before byte `since` is ignored.
    """
    try:
        lines = log.read_bytes()[since:].decode(errors="replace").splitlines()
    except OSError as error:
        return f"({error})"
    errors = [at for at, line in enumerate(lines) if re.search(r"\] (ERROR|FATAL) ", line)][:_ERRORS]
    shown = {at for error in errors for at in range(error, error + _LINES_OF_AN_ERROR)}
    last = _LINES_BEHIND_ERRORS if errors else _LINES_WITHOUT_ERRORS
    shown |= set(range(max(0, len(lines) - last), len(lines)))
    excerpt: list[str] = []
    before = -1
    for at in sorted(at for at in shown if at < len(lines)):
        if at != before + 1:
            excerpt.append("...")
        excerpt.append(lines[at])
        before = at
    return "\n".join(excerpt)


def controller_count(brokers: int) -> int:
    """Return the number of brokers that are also controllers.

    The number is odd, because one more controller would not let the quorum tolerate more failures.
    """
    most = min(brokers, _MOST_CONTROLLERS)
    return most if most % 2 else most - 1


def _shared_settings(brokers: int) -> dict[str, Setting]:
    replicas = min(brokers, 3)
    return {
        "inter.broker.listener.name": INTERNAL,
        "controller.listener.names": CONTROLLER,
        "default.replication.factor": replicas,
        # The internal topics are kept small: creating Kafka's default of 50 partitions each takes seconds on a laptop.
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min(replicas, 2),
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min(replicas, 2),
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # Kafka deletes records by their timestamps: with its default of 7 days, records with last year's timestamps
        # would be deleted minutes after they were sent.
        "log.retention.ms": -1,
        # The partitions of a dead broker get new leaders after 4 s, instead of Kafka's default of 9 s.
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
        # These settings save threads and memory, because the machine also runs the tests.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    }


def as_text(value: Setting) -> str:
    """Return a setting in the form that Kafka reads."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(value: str) -> str:
    """Return a value in the form that java.util.Properties reads: ASCII, with line ends (as in PEM) escaped."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    if escaped.startswith((" ", "\t")):
        escaped = "\\" + escaped  # Kafka would trim the space otherwise
    return re.sub(r"[^\x00-\x7f]", _utf16_escaped, escaped)


def _utf16_escaped(character: re.Match[str]) -> str:
    units = character[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
