"""The simulated loop and network alone, and that a run is the same to the byte in another process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aioproducer.testing.simulation.loop import BEGIN, SimulatedLoop, SimulationStalled, simulate
from aioproducer.testing.simulation.network import SimulatedNetwork


async def echo(reader, writer):
    """Send back whatever comes, until the end."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def echo_server(port=7):
    return await asyncio.start_server(echo, "server", port)


def network():
    return asyncio.get_running_loop().network


def test_time_passes_only_when_nothing_else_is_left_to_do():
    async def main():
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        return loop.time() - before

    began = time.perf_counter()

    assert simulate(main) == pytest.approx(7200)
    assert time.perf_counter() - began < 5


def test_what_waits_for_ever_is_told_by_name():
    async def main():
        asyncio.current_task().set_name("the sleeper")
        await asyncio.Event().wait()

    with pytest.raises(SimulationStalled, match="the sleeper"):
        simulate(main)


def test_what_never_comes_to_an_end_is_stopped():
    async def polls():
        while True:  # noqa: ASYNC110  # that is what is meant
            await asyncio.sleep(1)

    async def spins():
        while True:  # noqa: ASYNC110  # that is what is meant
            await asyncio.sleep(0)

    with pytest.raises(SimulationStalled, match="not at an end"):
        simulate(polls, time_limit=1000)
    with pytest.raises(SimulationStalled, match="busy for ever"):
        simulate(spins)


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


def test_nobody_listens_no_such_name_and_a_port_that_is_taken():
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


def test_what_is_held_arrives_when_it_is_released():
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


def test_no_thread_is_started():
    async def main():
        before = threading.active_count()
        assert await asyncio.to_thread(lambda: threading.active_count()) == before
        with pytest.raises(ZeroDivisionError):
            await asyncio.get_running_loop().run_in_executor(None, lambda: 1 // 0)

    simulate(main)


def test_the_clock_does_not_begin_at_zero_and_the_wall_clock_goes_with_it():
    loop = SimulatedLoop()

    assert loop.time() == BEGIN > 0
    loop.run_until_complete(asyncio.sleep(10))
    assert loop.wall_time() == pytest.approx(1_700_000_010)
    loop.close()


def test_another_network_has_other_latencies():
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


def digest(kind, seed, hash_seed):
    """The run as another process sees it."""
    code = (
        "import sys; from tests.campaigns.simulation.plan import plan; from tests.campaigns.simulation.run import run; "
        "print(*[run(plan(sys.argv[1], int(sys.argv[2]) + more)).history.digest for more in range(4)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, kind, str(seed)],
        cwd=Path(__file__).parent.parent.parent.parent,
        env={"PYTHONHASHSEED": str(hash_seed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize("kind", ["idempotent", "transactions v2"])
def test_the_same_seed_gives_the_same_bytes_at_the_same_times_in_every_process(kind):
    first, second = digest(kind, 5, hash_seed=1), digest(kind, 5, hash_seed=4711)

    assert first == second
    assert len(first) == len(set(first)) == 4, "another seed is another run"
    assert all(len(one) == 64 for one in first)
