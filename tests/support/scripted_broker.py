"""A broker under the full control of a test: it reads requests and writes any bytes.

Other helpers for the tests of connections, brokers and metadata are also here."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random

from aioproducer.config import ProducerConfig
from aioproducer.core import Core
from aioproducer.metrics import Metrics
from aioproducer.network.brokers import Brokers
from aioproducer.network.connection import Connection
from aioproducer.network.metadata import Metadata
from aioproducer.protocol.api import (
    CLIENT_VERSIONS,
    ApiKey,
    RequestHeader,
    VersionRange,
    decode_request,
    encode_response,
)
from aioproducer.protocol.messages import ApiVersionsResponse, MetadataResponse
from aioproducer.protocol.schema import Message
from aioproducer.security.login import Login
from aioproducer.types import Node
from tests.conftest import MS, at_most

HOST = "127.0.0.1"

LONG = 5000 * MS
"""The longest wait of a test, in seconds."""


def make_config(servers: str = "127.0.0.1:1", **settings: object) -> ProducerConfig:
    """A producer's default settings, with short back-offs for tests."""
    quick = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 40, "retry_backoff_ms": 10}
    return ProducerConfig.of(**{**quick, "bootstrap_servers": servers, **settings})


async def until(condition: Callable[[], object], seconds: float = LONG) -> None:
    """Let the loop run until the condition holds; fail after `seconds`."""
    async with at_most(seconds):
        while not condition():  # noqa: ASYNC110  # the condition sets no event
            await asyncio.sleep(MS)


class Peer:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[RequestHeader, Message]:
        """Read the next request.

        Raises:
            IncompleteReadError: the client has closed the connection.
        """
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return decode_request(await self.reader.readexactly(size))

    def frame(self, header: RequestHeader, response: Message, **changed: int) -> bytes:
        """Encode the response to a request; `version` and `correlation_id` replace the request's."""
        version = changed.get("version", header.version)
        correlation_id = changed.get("correlation_id", header.correlation_id)
        return b"".join(encode_response(response, version, correlation_id))

    def answer(self, header: RequestHeader, response: Message, **changed: int) -> None:
        self.writer.write(self.frame(header, response, **changed))

    async def handshake(self, **ranges: tuple[int, int]) -> None:
        """Answer the ApiVersions request with the client's own versions, or with other ranges by API name."""
        header, _ = await self.request()
        assert header.api_key == ApiKey.API_VERSIONS
        self.answer(header, api_versions(**ranges))

    async def read_to_end(self) -> None:
        """Read and discard bytes until the client closes the connection."""
        while await self.reader.read(65536):
            pass


def api_versions(**ranges: tuple[int, int]) -> ApiVersionsResponse:
    spoken = {key: VersionRange(*ranges.get(key.name.lower(), own)) for key, own in CLIENT_VERSIONS.items()}
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in spoken.items()
        ]
    )


def metadata_response(
    port: int, topics: dict[str, int] | None = None, node_id: int = 0, **fields: object
) -> MetadataResponse:
    """A response with one broker that leads all partitions; `topics` has the number of partitions of each topic."""
    return MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=node_id, host=HOST, port=port)],
        cluster_id="test",
        controller_id=node_id,
        topics=[
            MetadataResponse.MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponse.MetadataResponsePartition(
                        partition_index=index, leader_id=node_id, leader_epoch=0, replica_nodes=[node_id]
                    )
                    for index in range(count)
                ],
            )
            for name, count in (topics or {}).items()
        ],
        **fields,
    )


async def silence(peer: Peer) -> None:
    await peer.read_to_end()


def make_connection(
    port: int, *, metrics: Metrics | None = None, login: Login | None = None, **settings: object
) -> Connection:
    return Connection(
        Node(1, HOST, port),
        make_config(**settings),
        on_change=lambda connection: None,
        metrics=metrics or Metrics(),
        login=login,
    )


_reserved: deque[socket.socket] = deque()
_RESERVED = 32


def dead_port() -> int:
    """A port that refuses connections. A socket that does not listen is bound to it, so no other process gets it."""
    unheard = socket.socket()
    unheard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server may still bind exactly this port
    unheard.bind((HOST, 0))
    _reserved.append(unheard)
    while len(_reserved) > _RESERVED:
        _reserved.popleft().close()
    return unheard.getsockname()[1]


def _let_go() -> None:
    while _reserved:
        _reserved.pop().close()


atexit.register(_let_go)


class ScriptedBroker:
    """Runs `serve` for each connection, and leaves no socket and no task behind."""

    def __init__(self, serve: Callable[[Peer], Awaitable[object]], port: int = 0) -> None:
        self._serve = serve
        self.port = port
        self.connections = 0
        self.errors: list[BaseException] = []
        """The errors that `serve` raised, except those of a client that closed the connection."""
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def __aenter__(self) -> ScriptedBroker:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        self._tasks.append(asyncio.create_task(self._run(Peer(reader, writer))))

    async def _run(self, peer: Peer) -> None:
        try:
            await self._serve(peer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            peer.writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for _ in range(3):
            await asyncio.sleep(0)  # lets connections that are being accepted start their tasks
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        await self._server.wait_closed()
        assert not self.errors, self.errors


class Net:
    """Brokers and Metadata, connected as in a producer."""

    def __init__(self, servers: str, **settings: object) -> None:
        self.config = make_config(servers, **settings)
        self.wake = asyncio.Event()
        self.metrics = Metrics()
        core = Core(self.config, asyncio.get_running_loop(), self.wake, self.metrics, Random(7))
        self.brokers = Brokers(core)
        self.metadata = Metadata(core._replace(random=Random(7)), self.brokers)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Net:
        return self

    def run(self) -> None:
        self._task = asyncio.create_task(self.metadata.run(), name="aioproducer metadata")

    async def start(self) -> None:
        self.run()
        await self.metadata.first_update(asyncio.get_running_loop().time() + LONG)

    async def become_ready(self, node_id: int) -> None:
        """Wait for a node as the sender does: check it, then sleep until the wake-up event or the time to retry."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LONG):
            while True:
                self.wake.clear()
                began = loop.time()  # before `ready` reads the clock: a back-off may end in between
                if self.brokers.ready(node_id):
                    return
                retry_at = self.brokers.retry_at(node_id, began)
                try:
                    async with asyncio.timeout_at(retry_at or loop.time() + 3000 * MS):
                        await self.wake.wait()
                except TimeoutError:
                    assert retry_at is not None, "the sender was not woken"

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.brokers.close()
