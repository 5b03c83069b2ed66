"""One end of a simulated connection: order, window, and closing."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.testing.simulation.loop import simulate
from aioproducer.testing.simulation.network import SimulatedNetwork
from aioproducer.testing.simulation.transport import SimulatedTransport
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
        assert loop.time() > before, "no time has passed"
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(1)
        assert network().open_clients == []

    simulate(main)


def test_bytes_that_do_not_fit_into_the_window_wait_at_the_sender():
    async def main():
        server = await echo_server()
        network().hold(7, requests=False)  # the client does not learn what the server has read
        _, writer = await asyncio.wait_for(opened(), 5)
        writer.transport.set_write_buffer_limits(0)

        writer.write(bytes(1000))
        assert writer.transport.get_write_buffer_size() == 0, "the bytes have not left"
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


def test_an_aborted_connection_closes_the_other_end_before_or_after_the_bytes_in_transit():
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
    assert {100, "reset"} <= set(got), "both outcomes must occur"


# The transport without a server


class Seen(asyncio.Protocol):
    """A protocol that records its calls in order."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.transport: SimulatedTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.calls.append(bytes(data))

    def eof_received(self) -> None:
        self.calls.append("eof")

    def connection_lost(self, error: Exception | None) -> None:
        self.calls.append(("lost", error))

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append(("resume", self.transport.get_write_buffer_size()))


async def both_ends() -> tuple[Seen, Seen]:
    """Connect and return the client's end and the server's."""
    loop = asyncio.get_running_loop()
    server = Seen()
    listening = await loop.create_server(lambda: server, "server", 7)
    _, client = await loop.create_connection(Seen, "server", 7)
    listening.close()
    assert isinstance(client, Seen)
    return client, server


def test_each_end_knows_both_addresses():
    async def main():
        client, server = await both_ends()
        names = [
            [end.transport.get_extra_info(name) for name in ("sockname", "peername")]
            for end in (client, server)
        ]
        assert names[0] == names[1][::-1]
        assert names[0][1] == ("server", 7)
        assert client.transport.port == server.transport.port == 7

    simulate(main)


def test_close_sends_the_written_bytes_and_abort_does_not():
    async def main():
        big = bytes(200_000)  # more than the window: most of it waits at the sender
        client, server = await both_ends()
        client.transport.write(big)
        client.transport.close()
        client.transport.write(b"too late")
        await asyncio.sleep(1)
        received = [call for call in server.calls if isinstance(call, bytes)]
        assert b"".join(received) == big
        assert server.calls[len(received) :] == ["eof", ("lost", None)]
        assert client.calls[-1] == ("lost", None)

        client, server = await both_ends()
        client.transport.write(big)
        client.transport.abort()
        await asyncio.sleep(1)
        assert sum(len(call) for call in server.calls if isinstance(call, bytes)) < len(big)
        assert server.calls[-1][0] == "lost"
        assert client.calls[-1] == ("lost", None)

    simulate(main)


def test_writing_is_paused_above_the_high_mark_and_resumed_below_the_low_one():
    async def main():
        client, server = await both_ends()
        assert client.transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
        client.transport.set_write_buffer_limits(high=1000, low=250)
        server.transport.pause_reading()
        client.transport.write(bytes(100))  # fits into the window
        client.transport.write(bytes(1000))
        assert client.calls == []
        client.transport.write(b"x")
        client.transport.write(b"x")
        assert client.calls == ["pause"], "not paused exactly once"

        await asyncio.sleep(1)
        assert client.transport.get_write_buffer_size() == 1002
        server.transport.resume_reading()
        await asyncio.sleep(1)
        # One window at a time: 902, ..., 302, and 202 is the first size below the mark.
        assert client.calls == ["pause", ("resume", 202)]
        assert client.transport.get_write_buffer_size() == 0

    simulate(main, network=SimulatedNetwork(window=100, pieces=0.0))


def test_a_paused_reader_gets_nothing_not_even_the_end():
    async def main():
        client, server = await both_ends()
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.write(b"a")
        client.transport.close()
        await asyncio.sleep(1)
        assert server.calls == []

        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert server.calls == [b"a", "eof", ("lost", None)]

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_sent_to_a_closed_end_reset_the_connection(seed):
    async def main():
        client, server = await both_ends()
        client.transport.pause_reading()  # so that it does not learn that the server has closed its end
        server.transport.close()
        await asyncio.sleep(1)
        client.transport.write(b"x")
        await asyncio.sleep(1)
        kind, error = client.calls[-1]
        assert (kind, type(error)) == ("lost", ConnectionResetError)
        assert server.calls == [("lost", None)]

    simulate(main, seed=seed)
