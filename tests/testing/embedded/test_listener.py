"""The listening socket of a broker, which counts the connections that asyncio accepts."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aioproducer.testing.embedded.listener import listen


def selector_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop()


@pytest.fixture
def loop():
    loop = selector_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_counts_connections_until_it_stops(loop, host):
    with listen(loop, host, 0) as listener:
        listener.listen()
        for _ in range(2):
            with socket.create_connection(listener.getsockname()[:2]):
                connection, _ = listener.accept()
                assert connection.proto == socket.IPPROTO_TCP, "asyncio would not set TCP_NODELAY"
                connection.close()
        assert listener.accepted == 2

        listener.has_stopped = True
        with socket.create_connection(listener.getsockname()[:2]), pytest.raises(BlockingIOError):
            listener.accept()
        assert listener.accepted == 2


def test_a_host_name_is_left_to_asyncio(loop):
    assert listen(loop, "localhost", 0) is None


def test_another_kind_of_loop_gets_no_listener():
    assert listen(asyncio.AbstractEventLoop(), "127.0.0.1", 0) is None


def test_a_port_that_is_in_use_is_named(loop):
    with listen(loop, "127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=f"'127.0.0.1', {port}.*: address already in use"):
            listen(loop, "127.0.0.1", port)
