"""TLS in front of the acknowledging broker: a process with a certificate that terminates TLS and forwards the bytes.

python benchmarks/tls.py CERTIFICATE    prints its port, reads the broker's port from stdin, and serves"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from job import new_event_loop

HOST = "127.0.0.1"


class TlsEnd:
    """Runs the process for the duration of the `with` block, with a new certificate."""

    def __enter__(self) -> TlsEnd:
        import trustme

        self._folder = tempfile.TemporaryDirectory()
        authority, folder = trustme.CA(), Path(self._folder.name)
        self.authority = str(folder / "ca.pem")
        """The path of the certificate that clients trust."""
        authority.cert_pem.write_to_path(self.authority)
        certificate = str(folder / "broker.pem")
        authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(certificate)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), certificate],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only the run, which then kills the process
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def lead_to(self, bootstrap: str) -> str:
        """Forward to this broker. Return the address at which clients connect with TLS."""
        assert self._process.stdin is not None
        self._process.stdin.write(bootstrap.rpartition(":")[2] + "\n")
        self._process.stdin.flush()
        return f"{HOST}:{self.port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


async def serve(certificate: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    broker = 0

    async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                to.write(data)
                await to.drain()
        to.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(HOST, broker)
        await asyncio.gather(pump(reader, requests), pump(answers, writer))

    server = await asyncio.start_server(forward, HOST, 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    broker = int(await loop.run_in_executor(None, sys.stdin.readline))
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))
