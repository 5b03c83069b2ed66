"""The cost of TLS: CPU of the client process per MB, compared with a bare asyncio stream that writes the same bytes.

`compare` runs each client in a separate process. Another process terminates TLS, and forwards the bytes to the
acknowledging broker or discards them. The certificate is created for the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import trustme

from aioproducer import Producer
from broker import AckBroker
from job import new_event_loop

MB = 1_000_000
CHUNK = 65_536  # bytes per write to the bare stream, the size of a batch
VALUE = b"v" * 1000
ROWS = {
    "stream": "asyncio stream, TLS",
    "SSL": "aioproducer, TLS",
    "PLAINTEXT": "aioproducer, without TLS",
}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def write_stream(port: int, authority: str, megabytes: int) -> float:
    context = ssl.create_default_context(cafile=authority)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    data = (VALUE * (CHUNK // len(VALUE) + 1))[:CHUNK]

    async def write(size: int) -> None:
        for _ in range(size * MB // CHUNK):
            writer.write(data)
            await writer.drain()

    await write(megabytes // 10)
    before = cpu_seconds()
    await write(megabytes)
    used = cpu_seconds() - before
    writer.close()
    await writer.wait_closed()
    return used


async def produce(port: int, authority: str, megabytes: int, protocol: str) -> float:
    settings: dict[str, Any] = {"security_protocol": protocol}
    if protocol == "SSL":
        settings |= {"ssl_truststore_location": authority, "ssl_truststore_type": "PEM"}
        # The broker announces its own port, but TLS is terminated at another one.
        settings["address_filter"] = lambda host, advertised, node_id: (host, port)
    async with Producer(f"127.0.0.1:{port}", batch_size=CHUNK, linger_ms=5, **settings) as producer:

        async def push(size: int) -> None:
            for _ in range(size):
                deliveries = [await producer.send("t", VALUE) for _ in range(MB // len(VALUE))]
                for delivery in deliveries:
                    await delivery

        await push(megabytes // 10)
        before = cpu_seconds()
        await push(megabytes)
        return cpu_seconds() - before


async def end_tls(target: int, certificate: str) -> None:
    """Listen for TLS on a port, which is printed. Forward the bytes to port `target`, or discard them if it is 0."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter | None) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 20):
                if to is not None:
                    to.write(data)
                    await to.drain()
        if to is not None:
            to.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not target:
            await pump(reader, None)
            writer.close()
            return
        answers, requests = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, requests), pump(answers, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(coroutine)


def measured(row: str, folder: Path, megabytes: int) -> float:
    """Measure the CPU milliseconds per MB of one client."""
    here, authority, certificate = str(Path(__file__)), str(folder / "ca.pem"), str(folder / "broker.pem")
    with AckBroker("--topic", "t:12") as broker:
        plain = int(broker.bootstrap.rpartition(":")[2])
        target = 0 if row == "stream" else plain
        ending = subprocess.Popen(
            [sys.executable, here, "end", str(target), certificate],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only the run, which then kills the process
        )
        try:
            assert ending.stdout is not None
            port = plain if row == "PLAINTEXT" else int(ending.stdout.readline())
            told = subprocess.run(
                [sys.executable, here, row, str(port), authority, str(megabytes)],
                check=True,
                capture_output=True,
                text=True,
                start_new_session=True,
            )
        finally:
            ending.kill()
            ending.communicate()
    return float(json.loads(told.stdout)) / megabytes * 1000


def compare(quick: bool) -> dict[str, list[float]]:
    """Measure the CPU milliseconds per MB of each row, interleaved."""
    authority = trustme.CA()
    figures: dict[str, list[float]] = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            str(folder / "broker.pem")
        )
        for _ in range(2 if quick else 5):
            for row in ROWS:
                figures[row].append(measured(row, folder, 100 if quick else 300))
    return figures


def table(figures: dict[str, list[float]]) -> str:
    bare = statistics.median(figures["stream"])
    lines = ["## TLS: CPU of the client process per MB of 1 KB values, 12 partitions, batches of 64 KiB", ""]
    lines += ["| | ms per MB | to the bare stream |", "|---|---|---|"]
    for row, name in ROWS.items():
        median = statistics.median(figures[row])
        spread = f"[{min(figures[row]):.2f}–{max(figures[row]):.2f}]"
        lines.append(f"| {name} | **{median:.2f}** {spread} | {median / bare:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    what, number, path, *rest = sys.argv[1:]
    if what == "end":
        run(end_tls(int(number), path))
    elif what == "stream":
        print(run(write_stream(int(number), path, int(rest[0]))))
    else:
        print(run(produce(int(number), path, int(rest[0]), what)))
