"""An echo server in the simulated network."""

from __future__ import annotations

import asyncio


async def echo(reader, writer):
    """Send all data back until the client closes."""
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
