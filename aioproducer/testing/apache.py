"""A real Apache Kafka for tests: brokers as child processes, ended with the block that started them.

    async with ApacheKafka(brokers=3, config={"min.insync.replicas": 2}) as kafka:
        await kafka.create_topic("t", partitions=6, replication_factor=3)
        await kafka.kill(await kafka.leader("t", 0))

Needs the extra `aioproducer[kafka]`, or a Java 17+ of the machine's own and jars fetched before. POSIX only.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
import weakref
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from aioproducer.errors import ProtocolError
from aioproducer.testing import apache_admin
from aioproducer.testing.apache_broker import (
    HOST,
    Broker,
    PortReservation,
    Setting,
    as_text,
    controller_count,
)
from aioproducer.testing.apache_jars import (
    DEFAULT_VERSION,
    ApacheKafkaError,
    ApacheKafkaMissingError,
    class_path,
    java_executable,
    tail,
)
from aioproducer.testing.apache_process import ChildProcesses

__all__ = ["ApacheKafka", "ApacheKafkaError", "ApacheKafkaMissingError", "ApacheNode"]

_POLL = 0.05
"""Seconds between two questions to a broker that is not ready yet."""
_SOON = (OSError, EOFError, ProtocolError, ApacheKafkaError)
"""What asking a broker may raise while it is starting, stopping or paused."""
_LEAN_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_LOGGING = ("-Dorg.slf4j.simpleLogger.showDateTime=true",)


class ApacheNode(NamedTuple):
    """One broker as users see it."""

    id: int
    """Kafka's node id, counted from 0."""
    port: int
    """The client listener's own port on 127.0.0.1, also if another address is advertised."""
    pid: int | None
    """The broker's process, or None while it is down."""


class ApacheKafka:
    """Real brokers (KRaft) on free ports of 127.0.0.1.

    Args:
        brokers: Number of brokers; their node ids count from 0. The first 1, 3 or 5 of them are controllers
            too: as long as more than half of those are up, new leaders are elected.
        version: Kafka's version, e.g. "4.3.1" or "3.9.2".
        config: Broker settings by Kafka's names, which win over those made here. Listeners are named CLIENT
            (yours), INTERNAL and CONTROLLER; `listener.security.protocol.map` may give CLIENT another
            protocol.
        jvm_args: Arguments of each broker's JVM. "-XX:TieredStopAtLevel=1" starts sooner and peaks lower.
        format_args: More arguments for `kafka-storage format`, e.g. ("--feature", "transaction.version=1").
        directory: Where configuration, logs and data go, to stay there; a later cluster may continue with
            them. By default a temporary directory, removed at the end.
        ports: Client ports, one for each broker; free ones by default.
        advertised: Node id to the (host, port) that clients are told to connect to, for a proxy in between.
        start_timeout: Seconds until all brokers must be registered, not counting the first fetch of the jars.
            Also bounds `start_broker`, `stop_broker` and `create_topic`.

    Any event loop may call it, also one after another. If it fails to start, or the block raises, the logs
    are kept and a note on the error names their directory. Leaving the block, cancellation, Ctrl-C, the end
    of the interpreter and its sudden death all end the processes.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = DEFAULT_VERSION,
        *,
        config: Mapping[str, Setting] | None = None,
        jvm_args: Sequence[str] = ("-Xmx384m",),
        format_args: Sequence[str] = (),
        directory: str | os.PathLike[str] | None = None,
        ports: Sequence[int] | None = None,
        advertised: Mapping[int, tuple[str, int]] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers must be at least 1, not {brokers}")
        if ports is not None and len(ports) != brokers:
            raise ValueError(f"{brokers} brokers need {brokers} ports, not {len(ports)}")
        self.version = version
        self.start_timeout = start_timeout
        self._config = dict(config or {})
        self._jvm_args = tuple(jvm_args)
        self._format_args = tuple(format_args)
        self._chosen_directory = Path(directory).absolute() if directory is not None else None
        self._ports = tuple(ports) if ports is not None else (0,) * brokers
        self._advertised = dict(advertised or {})
        # Set by start().
        self._brokers: list[Broker] = []
        self._java: list[str] = []
        self._holdings: _Holdings | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Cancellation and Ctrl-C are not failures of what ran in the block.
        if isinstance(exc, Exception):
            exc.add_note(self._held.release_but_logs(self._brokers))
        else:
            self._held.release()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses that clients are told to connect to: "host:port,host:port"."""
        return ",".join("{}:{}".format(*broker.advertised) for broker in self._brokers)

    @property
    def nodes(self) -> tuple[ApacheNode, ...]:
        """The brokers, by node id."""
        return tuple(
            ApacheNode(broker.id, broker.port, broker.running.pid if broker.running else None)
            for broker in self._brokers
        )

    @property
    def directory(self) -> Path:
        """Where each broker has its own directory `node-<id>` with server.properties, server.log and data."""
        return self._held.directory

    async def start(self) -> None:
        """Start the brokers and return when each of them answers and knows all the others.

        Cancelling ends what was started. `async with` calls this; without it, `stop()` must be called.

        Raises:
            ApacheKafkaMissingError: the extra `aioproducer[kafka]` is not installed.
            ApacheKafkaError: a broker ended or was not ready in time; the text has the tail of its log.
        """
        if self._holdings is not None:
            raise RuntimeError("an ApacheKafka starts only once")
        java = java_executable()
        held = self._holdings = _Holdings(self._chosen_directory)
        weakref.finalize(self, held.release)
        try:
            jars = await class_path(self.version, held.children, held.directory / "jars.log")
            self._java = [java, *_LOGGING, "-cp", jars]
            self._lay_out()
            async with self._within_start_timeout(self._brokers, "starting"):
                await self._format()
                for broker in self._brokers:
                    self._spawn(broker)
                await self._until_registered(self._brokers, {broker.id for broker in self._brokers})
        except Exception as error:
            error.add_note(held.release_but_logs(self._brokers))
            raise
        except BaseException:
            held.release()
            raise

    async def stop(self) -> None:
        """End all brokers at once and remove the temporary directory. Awaits nothing: can't be cancelled."""
        self._held.release()

    async def kill(self, node_id: int) -> None:
        """SIGKILL a broker: nothing is flushed, no leadership is handed over, its connections break."""
        broker = self._brokers[node_id]
        self._held.children.kill(self._process(broker))
        broker.is_paused = False

    def pause(self, node_id: int) -> None:
        """SIGSTOP a broker: its connections stay open and nothing is answered."""
        broker = self._brokers[node_id]
        self._process(broker).send_signal(signal.SIGSTOP)
        broker.is_paused = True

    def resume(self, node_id: int) -> None:
        """SIGCONT a paused broker."""
        broker = self._brokers[node_id]
        self._process(broker).send_signal(signal.SIGCONT)
        broker.is_paused = False

    async def stop_broker(self, node_id: int) -> None:
        """Let a broker shut down by itself (SIGTERM): it hands its leaderships over first.

        Cancelling leaves it shutting down.

        Raises:
            ApacheKafkaError: it did not end within start_timeout.
        """
        broker = self._brokers[node_id]
        process = self._process(broker)
        self.resume(node_id)
        process.terminate()
        async with self._within_start_timeout([broker], "shutting down"):
            await self._held.children.wait(process)

    async def start_broker(self, node_id: int) -> None:
        """Start a broker that was stopped or killed, with its old ports and data; return when it is ready.

        Right after a kill, that takes the rest of broker.session.timeout.ms longer (4 s, unless set): so long
        the controller believes that the old process lives. Cancelling leaves the broker starting.

        Raises:
            ApacheKafkaError: it is running, or ended, or was not ready within start_timeout.
        """
        broker = self._brokers[node_id]
        if broker.running:
            raise ApacheKafkaError(f"broker {node_id} is running already")
        self._spawn(broker)
        async with self._within_start_timeout([broker], "starting"):
            await self._until_registered([broker], {node_id})

    def log_text(self, node_id: int) -> str:
        """All that a broker has logged so far."""
        return self._brokers[node_id].log.read_text(errors="replace")

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, Setting] | None = None,
    ) -> None:
        """Create a topic and return when every broker that is up knows a leader of each partition.

        Raises:
            BrokerError: the cluster refused, e.g. with TOPIC_ALREADY_EXISTS.
            ApacheKafkaError: no broker is up, or it took longer than start_timeout.
        """
        settings = {key: as_text(value) for key, value in (config or {}).items()}
        answering = self._answering()
        async with self._within_start_timeout(answering, f"creating topic {name!r}"):
            port = answering[0].internal_port
            await apache_admin.create_topic(port, name, partitions, replication_factor, settings)
            for broker in answering:
                # Polled: there is nothing on this side that could set an event.
                while not _complete(  # noqa: ASYNC110
                    await apache_admin.leaders(broker.internal_port, name), partitions
                ):
                    await asyncio.sleep(_POLL)

    async def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader as one of the brokers that are up sees it, or -1 for none.

        Raises:
            ApacheKafkaError: no broker is up, or the topic or the partition does not exist.
        """
        leaders = await apache_admin.leaders(self._answering()[0].internal_port, topic)
        if partition >= len(leaders):
            raise ApacheKafkaError(f"there is no partition {partition} of topic {topic!r}")
        return leaders[partition]

    @property
    def _held(self) -> _Holdings:
        if self._holdings is None:
            raise RuntimeError("this ApacheKafka was never started")
        return self._holdings

    def _process(self, broker: Broker) -> subprocess.Popen[bytes]:
        process = broker.running
        if process is None:
            raise ApacheKafkaError(f"broker {broker.id} is not running")
        return process

    def _answering(self) -> list[Broker]:
        brokers = [broker for broker in self._brokers if broker.running and not broker.is_paused]
        if not brokers:
            raise ApacheKafkaError("no broker is running, or all of them are paused")
        return brokers

    def _lay_out(self) -> None:
        reserve = self._held.ports.reserve
        for node_id, chosen_port in enumerate(self._ports):
            port = reserve(chosen_port)
            self._brokers.append(
                Broker(
                    id=node_id,
                    directory=self._held.directory / f"node-{node_id}",
                    port=port,
                    internal_port=reserve(),
                    controller_port=reserve(),
                    advertised=self._advertised.get(node_id, (HOST, port)),
                )
            )
        voters = self._brokers[: controller_count(len(self._brokers))]
        for broker in self._brokers:
            broker.write_files(voters, len(self._brokers), self._config)

    async def _format(self) -> None:
        """Write each broker's cluster id and first metadata, unless its data directory has them."""
        tools = {
            broker.id: self._held.children.spawn(
                [
                    *self._java[:1],
                    *_LEAN_JVM,
                    *self._java[1:],
                    "kafka.tools.StorageTool",
                    "format",
                    f"--cluster-id={self._held.cluster_id()}",
                    f"--config={broker.properties}",
                    *self._format_args,
                ],
                directory=broker.directory,
                log=broker.log,
            )
            for broker in self._brokers
            if not broker.is_formatted
        }
        for node_id, tool in tools.items():
            if await self._held.children.wait(tool) != 0:
                log = tail(self._brokers[node_id].log)
                raise ApacheKafkaError(f"the storage of broker {node_id} could not be formatted:\n{log}")

    def _spawn(self, broker: Broker) -> None:
        self._held.ports.before_listening()
        broker.process = self._held.children.spawn(
            [
                *self._java[:1],
                "-XX:-UsePerfData",  # its file would outlive a killed broker
                f"-Djava.io.tmpdir={broker.scratch}",
                *self._jvm_args,
                *self._java[1:],
                "kafka.Kafka",
                str(broker.properties),
            ],
            directory=broker.directory,
            log=broker.log,
        )
        broker.is_paused = False

    async def _until_registered(self, brokers: Sequence[Broker], expected: Collection[int]) -> None:
        """Wait until each of `brokers` takes clients and knows all the `expected` ids, or one has ended."""
        for broker in brokers:
            while not await _knows(broker, expected):
                for other in brokers:
                    if not other.running:
                        code = other.process.returncode if other.process else None
                        raise ApacheKafkaError(
                            f"broker {other.id} ended with code {code} while starting:\n{tail(other.log)}"
                        )
                await asyncio.sleep(_POLL)

    @asynccontextmanager
    async def _within_start_timeout(self, brokers: Sequence[Broker], doing: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.start_timeout):
                yield
        except TimeoutError as error:
            logs = "\n".join(f"--- broker {broker.id}:\n{tail(broker.log)}" for broker in brokers)
            raise ApacheKafkaError(f"still {doing} after {self.start_timeout:g} s\n{logs}") from error


class _Holdings:
    """What an ApacheKafka must give back: processes, ports, a directory."""

    def __init__(self, chosen_directory: Path | None) -> None:
        self._is_temporary = chosen_directory is None
        self.directory = chosen_directory or Path(tempfile.mkdtemp(prefix="aioproducer-kafka-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.children = ChildProcesses(scratch=self.directory if self._is_temporary else None)
        self.ports = PortReservation()
        self._is_released = False

    def cluster_id(self) -> str:
        """One id for all brokers that ever have their data in this directory."""
        file = self.directory / "cluster-id"
        if not file.exists():
            file.write_text(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        return file.read_text()

    def release(self) -> None:
        """Give all back. Awaits nothing, so that no cancellation can get in between."""
        if self._end() and self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def release_but_logs(self, brokers: Sequence[Broker]) -> str:
        """Give all back but configuration and logs; return a sentence that says where they are."""
        if self._end() and self._is_temporary:
            for broker in brokers:
                broker.discard_data()
        return f"Kafka's logs are kept in {self.directory}"

    def _end(self) -> bool:
        if self._is_released or not self.children.are_ours:
            return False
        self._is_released = True
        self.children.end()
        self.ports.release()
        return True


def _complete(leaders: Sequence[int], partitions: int) -> bool:
    return len(leaders) == partitions and -1 not in leaders


async def _knows(broker: Broker, expected: Collection[int]) -> bool:
    try:
        if not (await apache_admin.registered(broker.internal_port)).issuperset(expected):
            return False
        # The client listener may speak TLS or want a password: that it accepts is all there is to see.
        _, writer = await asyncio.open_connection(HOST, broker.port)
        writer.close()
        await writer.wait_closed()
    except _SOON:
        return False
    return True
