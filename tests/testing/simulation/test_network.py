"""The simulated network: listeners, names, latencies, and connections that are cut or held."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aioproducer.testing.simulation.loop import simulate
from aioproducer.testing.simulation.network import SimulatedNetwork
from tests.support.simulated_echo import echo_server, network


def test_closed_ports_unknown_names_and_ports_in_use_are_errors():
    async def main():
        with pytest.raises(ConnectionRefusedError, match="server"):
            await asyncio.open_connection("server", 7)
        network().names["nowhere"] = ()
        with pytest.raises(socket.gaierror):
            await asyncio.get_running_loop().getaddrinfo("nowhere", 7)
        server = await echo_server()
        with pytest.raises(OSError, match="taken"):
            await echo_server()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("server", 7)

    simulate(main)


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_connection_is_noticed_at_both_ends(seed):
    async def main():
        ended = []

        async def serve(reader, writer):
            try:
                ended.append(await reader.read())
            except ConnectionError as error:
                ended.append(error)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "server", 7)
        reader, writer = await asyncio.open_connection("server", 7)
        writer.write(b"x" * 1000)
        await asyncio.sleep(0.01)

        assert network().cut(7) == 1

        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await asyncio.sleep(1)
        assert len(ended) == 1
        assert network().open_clients == []
        writer.close()
        server.close()

    simulate(main, seed=seed)


def test_held_bytes_arrive_when_they_are_released():
    async def main():
        loop = asyncio.get_running_loop()
        server = await echo_server()
        reader, writer = await asyncio.open_connection("server", 7)
        network().hold(7, answers=False)
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(4), 60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection("server", 7), 60)

        network().release(7)

        before = loop.time()
        assert await reader.readexactly(4) == b"late"
        assert loop.time() - before < 0.1
        writer.close()
        server.close()

    simulate(main)


def test_the_latency_of_a_network_can_be_set():
    async def main():
        loop = asyncio.get_running_loop()
        server = await echo_server()
        before = loop.time()
        reader, writer = await asyncio.open_connection("server", 7)
        writer.write(b"x")
        await reader.readexactly(1)
        writer.close()
        server.close()
        return loop.time() - before

    assert simulate(main, network=SimulatedNetwork(latency=(1.0, 1.0))) == pytest.approx(4.0)
