"""One broker of the embedded cluster: its states, and what becomes of its connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from aioproducer.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    ProduceResponse,
)
from aioproducer.testing import EmbeddedCluster
from aioproducer.testing.embedded.broker import TRANSITIONS, BrokerState
from tests.support.raw_client import TIMEOUT, RawClient, address, batch_of, produce_request


@pytest.mark.promise(
    "Test clusters", "brokers stop, freeze, change their release; leaders and in-sync replicas move"
)
async def test_a_frozen_broker_does_not_answer_until_it_thaws():
    async with EmbeddedCluster(2, topics={"t": 2}) as cluster:
        async with RawClient(address(cluster, 0)) as client, RawClient(address(cluster, 1)) as other:
            await client.metadata("t")
            cluster.freeze_broker(0)
            request = produce_request({("t", 0): batch_of(b"a")})
            correlation_id = client.send(request, 12)
            async with RawClient(address(cluster, 0)) as late:
                wanted = MetadataRequest(topics=[])
                late_id = late.send(wanted, 12)
                # The other broker answers, and its metadata still lists the frozen one.
                for _ in range(3):
                    assert len((await other.metadata("t")).brokers) == 2
                assert cluster.records("t") == []

                cluster.thaw_broker(0)
                response = await client.answer(request, 12, correlation_id)
                await late.answer(wanted, 12, late_id)

        assert isinstance(response, ProduceResponse)
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_a_broker_that_is_frozen_can_be_stopped():
    async with EmbeddedCluster() as cluster, RawClient(address(cluster)) as client:
        cluster.freeze_broker(0)
        client.send(MetadataRequest(topics=[]), 12)
        await cluster.stop_broker(0)
        assert await client.is_closed()
        with pytest.raises(RuntimeError, match="broker 0 is stopped"):
            await cluster.stop_broker(0)


@pytest.mark.parametrize("start", BrokerState)
@pytest.mark.parametrize("to", BrokerState)
async def test_a_broker_changes_its_state_only_as_in_the_table(start, to):
    async with EmbeddedCluster() as cluster:
        broker = cluster.broker(0)
        starting = asyncio.create_task(asyncio.sleep(0))
        if start in (BrokerState.STOPPED, BrokerState.STARTING):
            await cluster.stop_broker(0)
        if start is BrokerState.STARTING:
            starting = asyncio.create_task(cluster.start_broker(0))
            await asyncio.sleep(0)
        elif start is BrokerState.FROZEN:
            cluster.freeze_broker(0)
        assert broker.state is start

        async def change() -> None:
            if to is BrokerState.STARTING and start is not BrokerState.STOPPED:
                await broker.start()  # raises at once
            elif to is BrokerState.STARTING:
                asking = asyncio.create_task(broker.start())
                await asyncio.sleep(0)
                if not asking.done():
                    assert broker.state is to
                await asking
            elif to is BrokerState.RUNNING and start is BrokerState.STARTING:
                await starting
            else:
                {
                    BrokerState.STOPPED: broker.halt,
                    BrokerState.FROZEN: broker.freeze,
                    BrokerState.RUNNING: broker.thaw,
                }[to]()

        if to in TRANSITIONS[start]:
            await change()
            assert broker.state is (BrokerState.RUNNING if to is BrokerState.STARTING else to)
        else:
            with pytest.raises(RuntimeError, match=f"broker 0 is {start.value}"):
                await change()
        (failure,) = await asyncio.gather(starting, return_exceptions=True)
        # If a broker is stopped while it starts, its start fails.
        stopped = (start, to) == (BrokerState.STARTING, BrokerState.STOPPED)
        assert isinstance(failure, RuntimeError) is stopped


async def test_metadata_names_a_broker_only_once_it_accepts_connections():
    async with EmbeddedCluster(2) as cluster:
        await cluster.stop_broker(0)
        starting = asyncio.create_task(cluster.start_broker(0))
        while len(cluster.alive()) < 2:  # noqa: ASYNC110  # the first iteration in which metadata lists it
            await asyncio.sleep(0)
        async with RawClient(address(cluster)) as client:
            await client.metadata()
        await starting


@pytest.mark.promise(
    "Test clusters", "brokers stop, freeze, change their release; leaders and in-sync replicas move"
)
async def test_a_broker_can_restart_as_another_release():
    async with EmbeddedCluster(versions="2.8") as cluster:
        await cluster.stop_broker(0)
        await cluster.start_broker(0, versions="4.1")
        async with RawClient(address(cluster)) as client:
            response = await client.ask(ApiVersionsRequest(), 0)
        assert isinstance(response, ApiVersionsResponse)
        assert response.api_keys[0].max_version == 13


async def test_a_connection_that_was_just_accepted_is_cut_when_the_broker_stops():
    """asyncio does not close a connection if the server is closed before the connection has a transport."""
    loop = asyncio.get_running_loop()
    async with EmbeddedCluster(1) as cluster:
        broker = cluster.broker(0)
        with socket.create_connection((broker.host, broker.port)) as client:
            client.setblocking(False)
            # Halt in the next iteration, when the loop has accepted the connection but has not created the transport.
            loop.call_soon(loop.call_soon, broker.halt)
            async with asyncio.timeout(TIMEOUT):
                with contextlib.suppress(ConnectionResetError):
                    assert await loop.sock_recv(client, 1) == b""
            await broker.wait_stopped()
            gc.collect()
        assert broker.connection_count == 0
