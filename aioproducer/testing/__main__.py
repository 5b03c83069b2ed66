"""`python -m aioproducer.testing --brokers 3 --port 9092 --topic flights:12`: a cluster for experiments.

It prints one line when it is ready, and runs until it receives SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster
from aioproducer.testing.embedded.releases import EVENT_HUBS, RELEASES

_HIGHEST_PORT = 65535


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}; see --help\n")


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: pass a number from 1 to {_HIGHEST_PORT}, or 0 to choose free ports"
        )
    return int(text)


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    return name, _count(partitions or "1")


def _arguments() -> argparse.Namespace:
    parser = _Parser(
        prog="python -m aioproducer.testing",
        description="A Kafka cluster in one process that keeps everything in memory: for tests and for trying "
        "things out. It prints its addresses when it is ready and stops on SIGINT (Ctrl-C) or SIGTERM.",
        epilog="The exit status is 0 after a signal, 1 if a port is taken, and 2 if an option is invalid.",
    )
    parser.add_argument("--brokers", type=_count, default=1, help="number of brokers (default: %(default)s)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on and to advertise to clients (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=9092,
        help="the first broker's port; the others use the ports after it; 0 chooses free ports "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--versions",
        default="4.1",
        metavar="RELEASE",
        help=f"behave like this Kafka release, {RELEASES[0]} to {RELEASES[-1]}, or like {EVENT_HUBS} "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--transaction-version",
        type=int,
        choices=(0, 1, 2),
        default=2,
        help="level of the transaction.version feature: 2 for transactions v2, 0 or 1 for v1 (default: %(default)s; "
        "releases before 4.0 don't have it)",
    )
    parser.add_argument(
        "--partitions",
        type=_count,
        default=1,
        help="number of partitions for topics that are created on demand (default: %(default)s)",
    )
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME:PARTITIONS",
        help="a topic to create at startup; may be repeated",
    )
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="also stop when standard input ends, as it does when the parent process dies",
    )
    return parser.parse_args()


def cluster_of(arguments: argparse.Namespace) -> EmbeddedCluster:
    """Return the cluster that the arguments describe.

    Raises:
        ValueError: an argument is invalid, or arguments contradict each other.
    """
    topics: dict[str, int] = {}
    for name, partitions in arguments.topic:
        if name in topics:
            raise ValueError(f"--topic {name} is given twice; name each topic once")
        topics[name] = partitions
    last = arguments.port + arguments.brokers - 1
    if arguments.port and last > _HIGHEST_PORT:
        raise ValueError(f"--port {arguments.port} --brokers {arguments.brokers} requires ports up to {last}")
    if arguments.stop_with_stdin and sys.stdin is None:
        raise ValueError("--stop-with-stdin requires standard input; start the command with a pipe")
    return EmbeddedCluster(
        arguments.brokers,
        host=arguments.host,
        port=arguments.port,
        topics=topics,
        default_partitions=arguments.partitions,
        versions=arguments.versions,
        transaction_version=arguments.transaction_version,
    )


def _stop_with_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Wait until standard input ends, whatever kind of file it is, then set `stop`. Runs in its own thread."""
    try:
        while os.read(0, 65536):
            pass
    except OSError:
        pass
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:
        pass  # the loop has already stopped and is closed


def _announce(servers: str) -> None:
    sys.stdout.write(f"listening on {servers}\n")
    sys.stdout.flush()


async def serve(
    cluster: EmbeddedCluster, *, stop_with_stdin: bool = False, announce: Callable[[str], None] = _announce
) -> None:
    """Run a cluster until a signal arrives or standard input ends.

    Args:
        cluster: a cluster that has not been started.
        stop_with_stdin: whether the cluster also stops when standard input ends.
        announce: called with the addresses when the cluster is ready.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    async with cluster:
        announce(cluster.bootstrap_servers)
        if stop_with_stdin:
            threading.Thread(target=_stop_with_stdin, args=(loop, stop), daemon=True).start()
        await stop.wait()


def main() -> int:
    """Run the command. Return the exit status: 0 after a signal, 1 if a port is taken, 2 if an argument is invalid."""
    arguments = _arguments()
    try:
        cluster = cluster_of(arguments)
        asyncio.run(serve(cluster, stop_with_stdin=arguments.stop_with_stdin))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        advice = "; choose another first port with --port, or free ports with --port 0"
        sys.stderr.write(f"{error}{advice if error.errno == errno.EADDRINUSE else ''}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
