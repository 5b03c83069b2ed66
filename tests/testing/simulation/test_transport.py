"""One end of a simulated connection: order, window, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.testing.simulation.loop import simulate
from tests.support.simulated_echo import echo_server, network


def test_bytes_come_back_in_order_in_pieces_and_late():
    async def main():
        loop = asyncio.get_running_loop()
        server = await echo_server()
        reader, writer = await asyncio.open_connection("server", 7)
        sent = b"".join(b"%06d" % number for number in range(40_000))
        before = loop.time()
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        assert loop.time() > before, "it takes time to get there"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(1)
        assert network().open_clients == []

    simulate(main)


def test_what_does_not_fit_into_the_window_waits_with_the_sender():
    async def main():
        server = await echo_server()
        network().hold(7, requests=False)  # nobody learns what the server has read
        _, writer = await asyncio.wait_for(opened(), 5)
        writer.transport.set_write_buffer_limits(0)

        writer.write(bytes(1000))
        assert writer.transport.get_write_buffer_size() == 0, "it has left"
        writer.write(bytes(100_000))
        assert writer.transport.get_write_buffer_size() > 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 5)

        network().release()
        await writer.drain()
        assert writer.transport.get_write_buffer_size() == 0
        writer.transport.abort()
        server.close()

    async def opened():
        network().release()
        opened = await asyncio.open_connection("server", 7)
        network().hold(7)
        return opened

    simulate(main)


def test_a_dropped_connection_ends_the_other_end_after_what_was_on_its_way_or_before():
    async def main():
        got = []

        async def serve(reader, writer):
            try:
                got.append(len(await reader.read(-1)))
            except ConnectionResetError:
                got.append("reset")
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "server", 7)
        for _ in range(40):
            _, writer = await asyncio.open_connection("server", 7)
            writer.write(b"x" * 100)
            writer.transport.abort()
            await asyncio.sleep(0.1)
        server.close()
        return got

    got = simulate(main)

    assert len(got) == 40
    assert {100, "reset"} <= set(got), "both happen"
