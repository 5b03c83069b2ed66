"""`python -m aioproducer.testing --brokers 3 --port 9092 --topic flights:12`: a cluster to play with.

Prints one line when it is ready, and runs until SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from aioproducer.testing.cluster import EmbeddedCluster


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    return name, int(partitions or 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m aioproducer.testing",
        description="An embedded Kafka cluster.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--brokers", type=int, default=1, help="how many")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen")
    parser.add_argument("--port", type=int, default=9092, help="the first broker's port; 0: free ones")
    parser.add_argument("--versions", default="4.1", help="the Kafka release whose API versions are served")
    parser.add_argument("--partitions", type=int, default=1, help="of topics that are made on demand")
    parser.add_argument(
        "--topic", type=_topic, action="append", default=[], metavar="NAME:PARTITIONS", help="may be repeated"
    )
    return parser.parse_args()


async def serve(cluster: EmbeddedCluster) -> None:
    """Run a cluster until a signal asks for the end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with cluster:
        sys.stdout.write(f"listening on {cluster.bootstrap_servers}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> int:
    """The exit status: 0 after a signal, 1 if a port is taken, 2 if an argument makes no sense."""
    arguments = _arguments()
    try:
        cluster = EmbeddedCluster(
            arguments.brokers,
            host=arguments.host,
            port=arguments.port,
            topics=dict(arguments.topic),
            default_partitions=arguments.partitions,
            versions=arguments.versions,
        )
        asyncio.run(serve(cluster))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
