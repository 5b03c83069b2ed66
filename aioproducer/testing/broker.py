"""One broker: a listening socket, and for each connection a task that serves one request after the other.

The next request is read when the answer to the last has left, so pipelined requests are served in order.
Owned by EmbeddedCluster. What a request means stands in handlers; here is what can happen to a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from aioproducer.errors import ProtocolError, UnsupportedVersionError
from aioproducer.protocol.api import (
    ApiKey,
    RequestHeader,
    VersionRange,
    decode_request,
    decode_request_header,
    encode_response,
)
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.frame import PREFIX_SIZE, decode_size
from aioproducer.protocol.messages import ApiVersionsResponse, ProduceRequest
from aioproducer.protocol.schema import Message
from aioproducer.testing.call import Call, CloseConnection
from aioproducer.testing.faults import Fault
from aioproducer.testing.handlers import HANDLERS, refused_api_versions, targets
from aioproducer.types import Node

if TYPE_CHECKING:
    from aioproducer.testing.cluster import EmbeddedCluster

logger = logging.getLogger(__name__)

SOCKET_REQUEST_MAX_BYTES = 100 * 1024 * 1024
"""Kafka's default for the largest request."""

_READ_LIMIT = 1024 * 1024  # bytes that are read ahead of the request being served


class BrokerState(Enum):
    """What a broker does with its connections."""

    STOPPED = "stopped"
    RUNNING = "running"
    FROZEN = "frozen"


TRANSITIONS: dict[BrokerState, frozenset[BrokerState]] = {
    BrokerState.STOPPED: frozenset({BrokerState.RUNNING}),
    BrokerState.RUNNING: frozenset({BrokerState.FROZEN, BrokerState.STOPPED}),
    BrokerState.FROZEN: frozenset({BrokerState.RUNNING, BrokerState.STOPPED}),
}


class Broker:
    """One broker of an EmbeddedCluster."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        node_id: int,
        host: str,
        port: int,
        versions: dict[ApiKey, VersionRange],
    ) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        """0 until the broker was started once, if the system shall choose."""
        self.versions = versions
        self._cluster = cluster
        self._state = BrokerState.STOPPED
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thawed = asyncio.Event()

    @property
    def state(self) -> BrokerState:
        """What it does now."""
        return self._state

    @property
    def node(self) -> Node:
        """Its address, as metadata names it."""
        return Node(self.node_id, self.host, self.port)

    @property
    def connection_count(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def _move(self, to: BrokerState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise RuntimeError(f"broker {self.node_id} is {self._state.value}, so it can't become {to.value}")
        self._state = to

    async def start(self) -> None:
        """Listen. A broker that was stopped takes its old port again."""
        self._move(BrokerState.RUNNING)
        self._thawed.set()
        try:
            self._server = await asyncio.start_server(self._accept, self.host, self.port, limit=_READ_LIMIT)
        except BaseException:
            self._move(BrokerState.STOPPED)
            raise
        self.port = self._server.sockets[0].getsockname()[1]

    def halt(self) -> None:
        """Close the port and cut every connection, whatever is under way on it. `wait_stopped` comes next."""
        self._move(BrokerState.STOPPED)
        assert self._server is not None
        self._server.close()
        self._cut_connections()

    async def wait_stopped(self) -> None:
        """After `halt`: wait until no task and no socket is left."""
        # A socket that the loop had accepted by now needs a few rounds to reach _accept(), which refuses it.
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def close_connections(self) -> None:
        """Cut every connection; the broker goes on listening."""
        await asyncio.gather(*self._cut_connections(), return_exceptions=True)

    def _cut_connections(self) -> list[asyncio.Task[None]]:
        for task, writer in self._connections.items():
            writer.transport.abort()
            task.cancel()
        return list(self._connections)

    def freeze(self) -> None:
        """Keep all connections and take new ones, but read nothing and answer nothing, as after SIGSTOP."""
        self._move(BrokerState.FROZEN)
        self._thawed.clear()
        for writer in self._connections.values():
            if not writer.transport.is_closing():
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads as well as writes

    def thaw(self) -> None:
        """Go on where `freeze` stopped."""
        self._move(BrokerState.RUNNING)
        for writer in self._connections.values():
            if not writer.transport.is_closing():
                writer.transport.resume_reading()  # type: ignore[attr-defined]  # it reads as well as writes
        self._thawed.set()

    # One connection

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._state is BrokerState.STOPPED:
            writer.transport.abort()
            return
        if self._state is BrokerState.FROZEN:
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads as well as writes
        peer = writer.get_extra_info("peername")
        task = asyncio.create_task(self._serve(reader, writer), name=f"broker {self.node_id} serves {peer}")
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._serve_one(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has gone.
        except CloseConnection as reason:
            logger.debug("broker %d closes a connection: %s", self.node_id, reason)
        except (ProtocolError, UnsupportedVersionError) as error:
            logger.warning("broker %d closes a connection: %s", self.node_id, error)
        except Exception as error:
            logger.exception("broker %d: a bug of the embedded broker", self.node_id)
            self._cluster.failures.append(error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, do it, answer it. What the script wants happens here or in the handler."""
        header, message = self._decode(await self._read_frame(reader))
        if message is None:
            refusal = refused_api_versions(ErrorCode.UNSUPPORTED_VERSION, self.versions)
            writer.writelines(encode_response(refusal, 0, header.correlation_id))
            return
        seen = self._cluster.note_request(self.node_id, header, message)
        faults = self._cluster.faults.take(
            ApiKey(header.api_key), self.node_id, targets(self._cluster, message)
        )
        if any(fault.drop_before for fault in faults):
            _forget_records(message)
            raise CloseConnection("so says the script, before the request was served")
        response = await HANDLERS[header.api_key](Call(self._cluster, self.node_id, seen, faults), message)
        await _suffer(faults)
        await self._thawed.wait()
        if response is not None:
            await self._write(writer, header, response, faults)

    async def _read_frame(self, reader: asyncio.StreamReader) -> bytes:
        size = decode_size(await reader.readexactly(PREFIX_SIZE), SOCKET_REQUEST_MAX_BYTES)
        frame = await reader.readexactly(size)
        await self._thawed.wait()
        return frame

    def _decode(self, frame: bytes) -> tuple[RequestHeader, Message | None]:
        """The request; None for an ApiVersions request that is newer than this broker."""
        header = decode_request_header(frame)
        served = self.versions.get(header.api_key)  # type: ignore[call-overload]  # an int that may be no ApiKey
        if served is not None and served.min <= header.version <= served.max:
            return decode_request(frame)
        if header.api_key == ApiKey.API_VERSIONS:
            return header, None
        raise UnsupportedVersionError(
            f"request of API key {header.api_key} version {header.version}, served are {served or 'none'}"
        )

    async def _write(
        self, writer: asyncio.StreamWriter, header: RequestHeader, response: Message, faults: Sequence[Fault]
    ) -> None:
        throttle_ms = max((fault.throttle_ms for fault in faults), default=0)
        if throttle_ms:
            response.throttle_time_ms = throttle_ms  # type: ignore[attr-defined]  # every response here has it
        wrong_id = any(fault.wrong_correlation_id for fault in faults)
        version = header.version
        if isinstance(response, ApiVersionsResponse) and response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # KIP-511: a refusal must be readable for whoever asked.
        segments = encode_response(response, version, header.correlation_id + wrong_id)
        for fault in faults:
            if fault.truncate is not None:
                writer.write(b"".join(segments)[: fault.truncate])
                raise CloseConnection(f"so says the script, after {fault.truncate} bytes of the answer")
        writer.writelines(segments)
        await writer.drain()
        if throttle_ms:
            # KIP-219: the answer comes at once, then the broker is deaf for that long.
            await asyncio.sleep(throttle_ms / 1000)


async def _suffer(faults: Sequence[Fault]) -> None:
    """What happens between doing what was asked and answering."""
    for fault in faults:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.hold is not None:
            await fault.hold.wait()
    if any(fault.drop_after_append for fault in faults):
        raise CloseConnection("so says the script, after the request was served")


def _forget_records(message: Message) -> None:
    """A dropped request stays in the list of those seen; its records need not."""
    if isinstance(message, ProduceRequest):
        for topic in message.topic_data:
            for data in topic.partition_data:
                data.records = None
