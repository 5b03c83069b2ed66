"""One real broker on paper: its ports, its files, its settings. Starts nothing."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Setting = str | int | float | bool

HOST = "127.0.0.1"
_MOST_CONTROLLERS = 5
_PROTOCOLS = "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"


class PortReservation:
    """Ports of 127.0.0.1 that nobody else is given while it lives, also while their broker is down.

    On Linux, two sockets may share a port if both allow it and neither listens yet. So a bound socket keeps a
    port from being handed out (and, as the source of a client's connection, from connecting to itself), and
    the broker can listen on it all the same. Elsewhere it holds them only until the brokers start.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def reserve(self, port: int = 0) -> int:
        """Reserve `port`, or any free one. Raises OSError if it is in use."""
        holder = socket.socket()
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, port))
        except OSError as error:
            holder.close()
            raise OSError(error.errno, f"port {port} of {HOST} is not free") from error
        self._sockets.append(holder)
        return int(holder.getsockname()[1])

    def before_listening(self) -> None:
        """The brokers are about to listen: let go where a reservation would stop them."""
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()


@dataclass
class Broker:
    """Fixed addresses and files of one broker, and the process that comes and goes."""

    id: int
    directory: Path
    port: int
    internal_port: int
    controller_port: int
    advertised: tuple[str, int]
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False

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
        """What the JVM unpacks, which would otherwise stay behind in the system's temporary directory."""
        return self.directory / "tmp"

    @property
    def is_formatted(self) -> bool:
        return (self.data / "meta.properties").exists()

    @property
    def running(self) -> subprocess.Popen[bytes] | None:
        """The process, if there is one and it has not ended."""
        return self.process if self.process is not None and self.process.poll() is None else None

    def write_files(self, voters: Sequence[Broker], brokers: int, config: Mapping[str, Setting]) -> None:
        """Make the broker's directory and its server.properties."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        settings = {**self._own_settings(voters), **_shared_settings(brokers), **config}
        lines = (f"{key}={_escaped(as_text(value))}\n" for key, value in settings.items())
        self.properties.write_text("".join(lines))

    def _own_settings(self, voters: Sequence[Broker]) -> dict[str, Setting]:
        listeners = f"CLIENT://{HOST}:{self.port},INTERNAL://{HOST}:{self.internal_port}"
        host, port = self.advertised
        is_voter = self in voters
        return {
            "node.id": self.id,
            "process.roles": "broker,controller" if is_voter else "broker",
            "listeners": f"{listeners},CONTROLLER://{HOST}:{self.controller_port}" if is_voter else listeners,
            "advertised.listeners": f"CLIENT://{host}:{port},INTERNAL://{HOST}:{self.internal_port}",
            "controller.quorum.voters": ",".join(f"{v.id}@{HOST}:{v.controller_port}" for v in voters),
            "log.dirs": str(self.data),
        }

    def discard_data(self) -> None:
        """Remove all but configuration and logs."""
        for directory in (self.data, self.scratch):
            shutil.rmtree(directory, ignore_errors=True)


def controller_count(brokers: int) -> int:
    """How many of the brokers are controllers too. An even number would survive no more failures."""
    most = min(brokers, _MOST_CONTROLLERS)
    return most if most % 2 else most - 1


def _shared_settings(brokers: int) -> dict[str, Setting]:
    replicas = min(brokers, 3)
    return {
        "listener.security.protocol.map": _PROTOCOLS,
        # The brokers' own traffic has a listener of its own: it needs no password and passes no proxy.
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "default.replication.factor": replicas,
        # Small internal topics: Kafka's 50 partitions each take seconds on a laptop.
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": min(replicas, 2),
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": min(replicas, 2),
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # A dead broker's leaderships move after this time instead of 9 s.
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
        # Threads and memory for a machine that runs tests too.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    }


def as_text(value: Setting) -> str:
    """A setting as Kafka reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(value: str) -> str:
    # A backslash or the end of a line means something in a properties file.
    return value.replace("\\", "\\\\").replace("\n", "\\n")
