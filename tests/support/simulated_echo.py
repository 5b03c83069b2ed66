"""A server of the simulated network that sends back what it is sent."""

from __future__ import annotations

import asyncio


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
