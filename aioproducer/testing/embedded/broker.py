"""One broker: a listening socket, and a task per connection that serves its requests one after another.

A request is read only after the response to the previous one has been sent, so pipelined requests are served in order.
EmbeddedCluster owns the brokers. The handlers process the requests; this module manages the connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
)
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.frame import PREFIX_SIZE, decode_size
from aioproducer.protocol.messages import ApiVersionsResponse
from aioproducer.protocol.schema import Message
from aioproducer.testing.embedded import fault_effects, listener
from aioproducer.testing.embedded.faults import Fault, ImpossibleFaultError
from aioproducer.testing.embedded.handlers import HANDLERS, targets
from aioproducer.testing.embedded.metadata_handlers import refused_api_versions
from aioproducer.testing.embedded.quotas import Timed
from aioproducer.testing.embedded.releases import Release
from aioproducer.testing.embedded.request_context import CloseConnection, RequestContext, Session
from aioproducer.testing.embedded.tls_streams import Reader, Writer, secured
from aioproducer.types import Node

if TYPE_CHECKING:
    from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster

logger = logging.getLogger(__name__)

SOCKET_REQUEST_MAX_BYTES = 100 * 1024 * 1024
"""The maximum size of a request in bytes: Kafka's default."""

_READ_LIMIT = 1024 * 1024  # bytes to read ahead of the current request
_ANOTHERS = 1_000_000  # added to a correlation id to get one that no recent request has used


class BrokerState(Enum):
    """The states of a broker. Metadata lists brokers that are running, or frozen but not fenced."""

    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"


TRANSITIONS: dict[BrokerState, frozenset[BrokerState]] = {
    BrokerState.STOPPED: frozenset({BrokerState.STARTING}),
    BrokerState.STARTING: frozenset({BrokerState.RUNNING, BrokerState.STOPPED}),
    BrokerState.RUNNING: frozenset({BrokerState.FROZEN, BrokerState.STOPPED}),
    BrokerState.FROZEN: frozenset({BrokerState.RUNNING, BrokerState.STOPPED}),
}


class EmbeddedBroker:
    """One broker of an EmbeddedCluster."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        node_id: int,
        host: str,
        port: int,
        release: Release,
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        """The port; if the system chooses it, 0 until the first start."""
        self.release = release
        self.is_fenced = False
        """True if the controller has fenced the broker. The broker rejoins the cluster when it thaws."""
        self._cluster = cluster
        self._state = BrokerState.STOPPED
        self._server: asyncio.Server | None = None
        self._listener: listener.CountingListener | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thawed = asyncio.Event()
        # Timers that run while the broker is frozen; they are cancelled when it thaws or stops.
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def state(self) -> BrokerState:
        """The state of the broker."""
        return self._state

    @property
    def _tls(self) -> ssl.SSLContext | None:
        return self._cluster.security.tls if self._cluster.security is not None else None

    @property
    def is_frozen(self) -> bool:
        """True if the broker is frozen: it reads no requests and sends no responses."""
        return self._state is BrokerState.FROZEN

    @property
    def node(self) -> Node:
        """The broker's address, as in metadata."""
        return Node(self.node_id, self.host, self.port)

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _move(self, to: BrokerState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise self._impossible(to)
        self._state = to

    def _impossible(self, to: BrokerState) -> RuntimeError:
        return RuntimeError(f"broker {self.node_id} is {self._state.value}, so it can't become {to.value}")

    async def start(self) -> None:
        """Start listening. After a stop, the broker reuses its old port. Raises OSError if the port is in use."""
        if self._state is BrokerState.STOPPED:
            await self.wait_stopped()
        self._move(BrokerState.STARTING)
        self._thawed = asyncio.Event()  # The event loop may have changed since the last start.
        self._thawed.set()
        try:
            # Create and serve in two steps: if start_server() were cancelled while starting to serve, it would leak
            # its socket.
            await asyncio.sleep(0)  # start_server() does not yield to the loop if it is given a socket
            self._listener = listener.listen(asyncio.get_running_loop(), self.host, self.port)
            place = (
                {"host": self.host, "port": self.port} if self._listener is None else {"sock": self._listener}
            )
            accept = partial(self._accept, self._listener)
            self._server = await asyncio.start_server(accept, **place, limit=_READ_LIMIT, start_serving=False)
            self.port = self._server.sockets[0].getsockname()[1]
            self._move(BrokerState.RUNNING)
            await self._server.start_serving()
        except BaseException:
            if self._state is not BrokerState.STOPPED:
                self.halt()
            elif self._server is not None:
                self._server.close()  # the server was created after this broker had been stopped
            raise

    def halt(self) -> None:
        """Close the port and cut every connection, even in the middle of a request. Call `wait_stopped` next."""
        self._move(BrokerState.STOPPED)
        self._cancel_timers()
        self.is_fenced = False
        if self._server is not None:
            listener.close(self._server, self._listener)
        self._cut_connections()
        self._thawed.set()

    async def wait_stopped(self) -> None:
        """After `halt`, wait until no task or socket remains."""
        if self._server is None:
            return
        # A connection that the loop has already accepted reaches _accept() a few turns later and is rejected there.
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def close_connections(self) -> None:
        """Cut every connection, but keep listening."""
        await asyncio.gather(*self._cut_connections(), return_exceptions=True)

    def _cut_connections(self) -> list[asyncio.Task[None]]:
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        return list(self._connections)

    def freeze(self, for_seconds: float = math.inf) -> None:
        """Freeze the broker, as SIGSTOP would, and thaw it after `for_seconds` (never if math.inf).

        A frozen broker keeps its connections and accepts new ones, but reads no requests and sends no responses."""
        self._move(BrokerState.FROZEN)
        self._thawed.clear()
        self.while_frozen(for_seconds, self.thaw)
        for writer in self._connections.values():
            if not writer.transport.is_closing():
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport also reads

    def while_frozen(self, seconds: float, callback: Callable[..., object], *arguments: object) -> None:
        """Call `callback` after `seconds` (never if math.inf), unless the broker thaws or stops first."""
        if math.isfinite(seconds):
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(seconds, callback, *arguments))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    @property
    def is_running(self) -> bool:
        """True if the broker has started and is neither stopped nor frozen."""
        return self._state is BrokerState.RUNNING

    async def thawed(self) -> None:
        """Wait while the broker is frozen; return when it has thawed or stopped."""
        await self._thawed.wait()

    def thaw(self) -> None:
        """Resume serving the connections after `freeze`."""
        if not self.is_frozen:
            raise self._impossible(BrokerState.RUNNING)
        self._move(BrokerState.RUNNING)
        self._cancel_timers()
        self.is_fenced = False
        self._cluster.transactions.wake()
        for writer in self._connections.values():
            if not writer.transport.is_closing():
                writer.transport.resume_reading()  # type: ignore[attr-defined]  # the transport also reads
        self._thawed.set()

    # One connection

    def _accept(
        self,
        accepted_by: listener.CountingListener | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if accepted_by is not None:
            accepted_by.made += 1
        if self._state is BrokerState.STOPPED:
            writer.transport.abort()
            return
        if self._state is BrokerState.FROZEN:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport also reads
        peer = writer.get_extra_info("peername")
        task = asyncio.create_task(self._serve(reader, writer), name=f"broker {self.node_id} serves {peer}")
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        try:
            security = self._cluster.security
            if self._tls is not None:
                # The handshake is done by this task, not by the server, so that a connection can be cut even during the
                # handshake.
                await self._thawed.wait()
                assert isinstance(reader, asyncio.StreamReader)
                assert isinstance(writer, asyncio.StreamWriter)
                reader, writer = await secured(self._tls, reader, writer)
            session = security.begin(writer.get_extra_info("peercert")) if security is not None else Session()
            while True:
                await self._serve_one(session, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass  # The client has closed the connection, or TLS has failed.
        except CloseConnection as reason:
            logger.debug("broker %d is closing a connection: %s", self.node_id, reason)
        except (ProtocolError, UnsupportedVersionError) as error:
            logger.warning("broker %d is closing a connection: %s", self.node_id, error)
        except ImpossibleFaultError as error:
            logger.error("broker %d is closing a connection: %s", self.node_id, error)
            self._cluster.failures.append(error)
        except Exception as error:
            logger.exception("broker %d: a bug in the embedded broker", self.node_id)
            self._cluster.failures.append(error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve_one(self, session: Session, reader: Reader, writer: Writer) -> None:
        """Read a request, serve it and answer it. Scripted faults are applied by this method or by the handler."""
        frame = await self._read_frame(reader)
        size = len(frame)
        header, message = self._decode(frame)
        del frame  # The message keeps these bytes alive until its records are appended.
        if message is None:
            refusal = refused_api_versions(ErrorCode.UNSUPPORTED_VERSION, self.release.versions)
            await fault_effects.write(writer, encode_response(refusal, 0, header.correlation_id), ())
            return
        cluster = self._cluster
        seen = cluster.note_request(self.node_id, header, message)
        if cluster.security is not None:
            cluster.security.check(session, header.api_key)
        meant = targets(cluster, message)
        faults = cluster.faults.take(ApiKey(header.api_key), self.node_id, meant)
        fault_effects.strike(cluster, self.node_id, faults, meant, late=False)
        await self._thawed.wait()
        if any(fault.drop_before for fault in faults):
            fault_effects.forget_records(message)
            raise CloseConnection("a scripted fault closes the connection before the request is served")
        await fault_effects.hold_back(faults)
        clock = asyncio.get_running_loop().time
        handling = Timed(
            HANDLERS[header.api_key](RequestContext(cluster, self.node_id, seen, faults, session), message),
            clock,
        )
        response = await handling
        fault_effects.strike(cluster, self.node_id, faults, meant, late=True)
        await fault_effects.delay(faults)
        await self._thawed.wait()
        throttle = cluster.quotas.throttle(
            self.node_id,
            header.client_id or "",
            size=size if header.api_key == ApiKey.PRODUCE else 0,
            seconds=handling.seconds + sum(fault.delay for fault in faults),
            now=clock(),
        )
        throttle_ms = max(round(throttle * 1000), *(fault.throttle_ms for fault in faults), 0)
        if response is not None:
            await self._write(writer, header, response, faults, throttle_ms)
        if throttle_ms:
            # KIP-219: the response is sent immediately; the broker then ignores the connection for the throttle time.
            await asyncio.sleep(throttle_ms / 1000)

    async def _read_frame(self, reader: Reader) -> bytes:
        size = decode_size(await reader.readexactly(PREFIX_SIZE), SOCKET_REQUEST_MAX_BYTES)
        frame = await reader.readexactly(size)
        await self._thawed.wait()
        return frame

    def _decode(self, frame: bytes) -> tuple[RequestHeader, Message | None]:
        """Decode a request. The message is None for an ApiVersions request that is too new for this broker."""
        header = decode_request_header(frame)
        served = self.release.versions.get(header.api_key)  # type: ignore[call-overload]  # may not be an ApiKey
        if served is not None and served.min <= header.version <= served.max:
            return decode_request(frame, ignore_rest=True)
        if header.api_key == ApiKey.API_VERSIONS and self.release.refuses_newer_api_versions:
            return header, None
        raise UnsupportedVersionError(
            f"API key {header.api_key} version {header.version} is not supported (supported: {served or 'none'})"
        )

    async def _write(
        self,
        writer: Writer,
        header: RequestHeader,
        response: Message,
        faults: Sequence[Fault],
        throttle_ms: int,
    ) -> None:
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        wrong_id = _ANOTHERS if any(fault.wrong_correlation_id for fault in faults) else 0
        version = header.version
        if isinstance(response, ApiVersionsResponse) and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # KIP-511: every client must be able to read this error response.
        segments = encode_response(response, version, header.correlation_id + wrong_id)
        await fault_effects.write(writer, segments, faults)
