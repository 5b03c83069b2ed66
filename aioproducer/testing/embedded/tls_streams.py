"""The server side of TLS on streams that are already open.

`StreamWriter.start_tls` cannot be used: on uvloop, a stream that is paused in connection_made continues to read, and
consumes the first bytes of the client's handshake."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, TypeAlias

_READ = 64 * 1024


class TlsReader:
    """A reader that decrypts only on demand, so a broker that reads slowly also slows the client down."""

    def __init__(self, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, encrypted: asyncio.StreamReader) -> None:
        self._tls = tls
        self._incoming = incoming
        self._encrypted = encrypted
        self._plain = bytearray()

    async def readexactly(self, size: int) -> bytes:
        """Read `size` decrypted bytes, like StreamReader.readexactly. Raises IncompleteReadError or ssl.SSLError."""
        while len(self._plain) < size:
            try:
                data = self._tls.read(_READ)
            except ssl.SSLWantReadError:
                encrypted = await self._encrypted.read(_READ)
                if not encrypted:
                    raise asyncio.IncompleteReadError(bytes(self._plain), size) from None
                self._incoming.write(encrypted)
                continue
            if not data:
                raise asyncio.IncompleteReadError(bytes(self._plain), size)
            self._plain += data
        found = bytes(self._plain[:size])
        del self._plain[:size]
        return found


class TlsWriter:
    """A writer that encrypts data and passes it to the socket's stream."""

    def __init__(self, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO, encrypted: asyncio.StreamWriter) -> None:
        self._tls = tls
        self._outgoing = outgoing
        self._encrypted = encrypted

    @property
    def transport(self) -> asyncio.WriteTransport:
        """The socket's transport."""
        return self._encrypted.transport

    def get_extra_info(self, name: str) -> Any:
        """Return the client's certificate for "peercert", and the socket's information for other names."""
        return self._tls.getpeercert() if name == "peercert" else self._encrypted.get_extra_info(name)

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt and send data, like StreamWriter.write."""
        view = memoryview(data)
        while len(view):
            view = view[self._tls.write(view) :]
        self._encrypted.write(self._outgoing.read())

    async def drain(self) -> None:
        """Wait until more data can be written, like StreamWriter.drain."""
        await self._encrypted.drain()

    def close(self) -> None:
        """Send the TLS close_notify alert, then close the stream like StreamWriter.close."""
        if not self._encrypted.is_closing():
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # do not wait for the client's close_notify
            self._encrypted.write(self._outgoing.read())
        self._encrypted.close()

    async def wait_closed(self) -> None:
        """Wait until the stream is closed, like StreamWriter.wait_closed."""
        await self._encrypted.wait_closed()


Reader: TypeAlias = asyncio.StreamReader | TlsReader
Writer: TypeAlias = asyncio.StreamWriter | TlsWriter


async def secured(
    context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[TlsReader, TlsWriter]:
    """Perform the server side of the TLS handshake. If it fails, the client gets an alert with the reason.

    Raises:
        ssl.SSLError: there is no common version or cipher suite, or the client has no acceptable certificate.
        ConnectionError: the client closed the connection.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
        except ssl.SSLError:
            writer.write(outgoing.read())
            raise
        else:
            writer.write(outgoing.read())
            return TlsReader(tls, incoming, reader), TlsWriter(tls, outgoing, writer)
        data = await reader.read(_READ)
        if not data:
            raise ConnectionResetError("the client closed the connection during the TLS handshake")
        incoming.write(data)
