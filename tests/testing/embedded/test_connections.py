"""The connections of an embedded broker: requests are served in order, and invalid bytes close the connection."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.messages import MetadataRequest, ProduceRequest
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.connections import SOCKET_REQUEST_MAX_BYTES, serve
from aioproducer.testing.embedded.handlers import HANDLERS
from tests.support.direct_calls import unstarted_cluster
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


class Closing:
    """A writer that can only be closed."""

    is_closed = False

    def get_extra_info(self, name: str) -> None:
        """Return nothing: there is no socket."""

    def close(self) -> None:
        self.is_closed = True

    async def wait_closed(self) -> None:
        """Return at once: the writer is already closed."""


@pytest.mark.parametrize("size", [-1, SOCKET_REQUEST_MAX_BYTES + 1])
async def test_a_request_of_an_invalid_size_is_not_read(size):
    cluster = unstarted_cluster({})
    reader, writer = asyncio.StreamReader(), Closing()
    reader.feed_data(size.to_bytes(4, "big", signed=True))

    async with asyncio.timeout(TIMEOUT):
        await serve(cluster, cluster.broker(0), reader, writer)

    assert writer.is_closed
    assert list(cluster.requests) == cluster.failures == []


async def test_a_bug_in_a_handler_closes_the_connection_and_is_kept_for_the_test(monkeypatch, caplog):
    async def broken(context: object, request: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(HANDLERS, ApiKey.METADATA, broken)
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        client.send(MetadataRequest(topics=[]), 12)
        assert await client.is_closed()
        (bug,) = cluster.failures
        cluster.failures.clear()

    assert isinstance(bug, ZeroDivisionError)
    assert "broker 0 is closing a connection because of a bug in the embedded broker" in caplog.text


@pytest.mark.parametrize(("versions", "version"), [("2.1", 8), ("3.5", 10), ("4.0", 13)])
async def test_a_request_above_the_ceiling_closes_the_connection(versions, version):
    async with EmbeddedCluster(versions=versions, topics={"t": 1}) as cluster:
        async with RawClient(address(cluster)) as client:
            client.send(produce_request({("t", 0): batch_of(b"a")}), version)
            assert await client.is_closed()
        assert cluster.records("t") == []


async def test_bytes_that_are_not_a_request_close_the_connection():
    async with EmbeddedCluster() as cluster:
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x02ab",
            b"\x7f\xff\xff\xff",
        ):
            async with RawClient(address(cluster)) as client:
                client.writer.write(garbage)
                assert await client.is_closed()


async def test_the_next_request_of_a_connection_is_read_after_the_last_one_is_answered():
    async with EmbeddedCluster(topics={"t": 1}) as cluster, RawClient(address(cluster)) as client:
        release = asyncio.Event()
        fault = cluster.faults.add(ApiKey.PRODUCE, hold=release)
        ids = [client.send(produce_request({("t", 0): batch_of(b"a")}), 12) for _ in range(3)]
        await asyncio.wait_for(fault.reached(), TIMEOUT)
        async with RawClient(address(cluster)) as other:
            for _ in range(3):
                await other.ask(MetadataRequest(topics=[]), 12)

        # Other connections are served, but no further request of this one has been read.
        assert len(cluster.requests_of(ApiKey.PRODUCE)) == 1
        assert len(cluster.records("t")) == 1
        release.set()
        for correlation_id in ids:
            await client.answer(ProduceRequest(), 12, correlation_id)
        assert len(cluster.records("t")) == 3
