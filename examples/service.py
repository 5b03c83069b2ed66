"""An asyncio service: accepts orders over TCP and answers each of them once Kafka has it.

    python examples/service.py --bootstrap-servers localhost:9092 --port 7000
    echo '{"customer": "ann", "item": 7}' | nc -q 1 localhost 7000

One producer serves all connections, so that orders from many clients share batches. The answer says where an order is
in the log, or what the client has to do: correct it, send it again, or check first whether it arrived. On Ctrl-C or
SIGTERM, the service answers the orders that it has read, and then ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys

from aioproducer import DeliveryError, InvalidRecordError, KafkaError, Outcome, Producer

try:
    import uvloop  # faster, if installed
except ImportError:
    new_event_loop = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop


class OrderService:
    """Reads lines, each of them an order in JSON, and answers line by line."""

    def __init__(self, producer: Producer, topic: str, patience: float) -> None:
        """Create a service that answers each order within `patience` seconds."""
        self._producer = producer
        self._topic = topic
        self._patience = patience
        self._is_ending = False
        self._connections: dict[asyncio.Task[None], bool] = {}
        """Connections by task; True while a connection waits for a line and can be cancelled without loss."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, from its first order to its last."""
        task = asyncio.current_task()
        assert task is not None
        try:
            while not self._is_ending:
                self._connections[task] = True
                line = await reader.readline()
                self._connections[task] = False
                if not line:
                    break
                writer.write(f"{await self.answer(line)}\n".encode())
                await writer.drain()
        except asyncio.CancelledError:
            pass  # by end()
        except ValueError:
            writer.write(b"refused: an order has at most 64 KiB\n")
        except ConnectionError:
            pass  # the client has disconnected; its orders are in the log nevertheless
        finally:
            del self._connections[task]
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def answer(self, line: bytes) -> str:
        """Send one order, and return the answer for the client."""
        try:
            customer = json.loads(line)["customer"]
        except (ValueError, KeyError, TypeError):
            return 'refused: an order is a line of JSON with a "customer"'
        try:
            stored = await self._producer.send_and_wait(
                self._topic,
                line.strip(),
                key=str(customer).encode(),  # a customer's orders stay in order
                headers=[("content-type", b"application/json")],
                timeout=self._patience,
            )
        except InvalidRecordError as error:
            return f"refused: {error}"
        except DeliveryError as error:
            if error.outcome is Outcome.UNKNOWN:
                return f"unknown: check whether it arrived before you send it again ({error})"
            return f"again: it is not stored ({error})"
        except KafkaError as error:
            return f"again: it is not stored ({error})"
        return f"stored: {stored.topic}-{stored.partition}@{stored.offset}"

    async def end(self) -> None:
        """Answer the orders that were read, and read no more."""
        self._is_ending = True
        connections = list(self._connections)
        for task in connections:
            if self._connections[task]:
                task.cancel()
        await asyncio.gather(*connections)


async def run(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    async with Producer(
        options.bootstrap_servers,
        client_id="order-service",
        compression_type="zstd",
        max_block_ms=options.patience * 1000,
    ) as producer:
        service = OrderService(producer, options.topic, options.patience)
        server = await asyncio.start_server(service.serve, options.host, options.port)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, stop.set)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
        host, port = server.sockets[0].getsockname()[:2]
        print(f"listening on {host}:{port}", flush=True)
        await stop.wait()
        server.close()
        await service.end()
        await server.wait_closed()
        counts = producer.metrics()
        print(f"{counts.records_acked} orders stored, {counts.records_failed + counts.records_unknown} not")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Accepts orders, lines of JSON, over TCP and answers each once Kafka has it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--topic", default="orders", help="topic of the orders")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=7000, help="port to listen on; 0: a free port")
    parser.add_argument("--patience", type=float, default=5, metavar="SECONDS", help="longest wait for Kafka")
    return parser.parse_args()


def main() -> int:
    """Run the service. Exit status: 0 after a signal, 2 if it can't start, 130 if interrupted before it started."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run(arguments()))
    except (KafkaError, OSError) as error:
        print(f"the service can't start: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
