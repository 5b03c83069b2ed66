"""Moving from aiokafka: the same code with both clients, side by side, and a version rewritten for aioproducer.

    python examples/from_aiokafka.py --bootstrap-servers localhost:9092
    python examples/from_aiokafka.py --client aioproducer      # aiokafka need not be installed

`orders` is written for aiokafka; both producers run it unchanged. `orders_anew` is the same code rewritten for
aioproducer. docs/from-aiokafka.md lists the corresponding names and the differences in behaviour."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from typing import Any

from aioproducer import DeliveryError, KafkaError, Producer

try:
    import uvloop  # faster, if installed
except ImportError:
    new_event_loop = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

ORDERS = [("ann", 7), ("bob", 3), ("ann", 12), ("eve", 5)]


def producer_class(client: str) -> Any:
    """Return the producer class of a client. Its import is the only line that changes.

    from aiokafka import AIOKafkaProducer
    from aioproducer.compat.aiokafka import AIOKafkaProducer
    """
    module = "aioproducer.compat.aiokafka" if client == "aioproducer" else "aiokafka"
    return importlib.import_module(module).AIOKafkaProducer


async def orders(AIOKafkaProducer: Any, servers: str, topic: str) -> list[str]:
    """Send the orders with code written for aiokafka."""
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        client_id="shop",
        enable_idempotence=True,
        key_serializer=str.encode,
        value_serializer=lambda value: json.dumps(value).encode(),
        compression_type="gzip",
        linger_ms=5,
    )
    headers = [("source", b"web")]
    try:
        await producer.start()
        futures = []
        for customer, item in ORDERS:
            value = {"customer": customer, "item": item}
            futures.append(await producer.send(topic, value, key=customer, headers=headers))
        await producer.flush()
        stored = await asyncio.gather(*futures)
        stored.append(
            await producer.send_and_wait(topic, {"customer": "bob", "item": 8}, "bob", headers=headers)
        )
    finally:
        await producer.stop()
    return [f"partition {metadata.partition}, offset {metadata.offset}" for metadata in stored]


async def orders_anew(servers: str, topic: str) -> list[str]:
    """Send the orders with code written for aioproducer, which is idempotent and lingers 5 ms by default."""
    async with Producer(
        servers,
        client_id="shop",
        key_serializer=str.encode,
        value_serializer=lambda value: json.dumps(value).encode(),
        compression_type="gzip",
    ) as producer:
        deliveries = [
            await producer.send(
                topic, {"customer": customer, "item": item}, key=customer, headers=[("source", b"web")]
            )
            for customer, item in [*ORDERS, ("bob", 8)]
        ]
        told = []
        for delivery in deliveries:  # cheaper than asyncio.gather
            try:
                metadata = await delivery
                told.append(f"partition {metadata.partition}, offset {metadata.offset}")
            except DeliveryError as error:
                told.append(f"not delivered, outcome {error.outcome.value}")
        return told


async def side_by_side(options: argparse.Namespace) -> None:
    """Run the chosen clients, and print their results side by side."""
    columns: dict[str, list[str]] = {}
    for client in ("aiokafka", "aioproducer"):
        if options.client in (client, "both"):
            columns[client] = await orders(
                producer_class(client), options.bootstrap_servers, f"{options.topic}-{client}"
            )
    if options.client != "aiokafka":
        columns["rewritten"] = await orders_anew(options.bootstrap_servers, f"{options.topic}-anew")
    print("".join(f"{title:28}" for title in columns).rstrip())
    for row in zip(*columns.values(), strict=True):
        print("".join(f"{cell:28}" for cell in row).rstrip())


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="The same code with aiokafka and with aioproducer.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--topic", default="moving", help="prefix of the topic names")
    parser.add_argument(
        "--client", choices=("aiokafka", "aioproducer", "both"), default="both", help="clients to run"
    )
    parser.add_argument(
        "--patience", type=float, default=10, metavar="SECONDS", help="longest wait for Kafka"
    )
    return parser.parse_args()


def main() -> int:
    """Run the example. Exit status: 0 done, 2 failed, 130 interrupted."""
    options = arguments()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(asyncio.wait_for(side_by_side(options), options.patience))
    except ImportError:
        print("aiokafka is not installed: pip install aiokafka, or use --client aioproducer", file=sys.stderr)
        return 2
    except TimeoutError:
        where = options.bootstrap_servers
        print(f"no answer within {options.patience:g} s; is Kafka running at {where}?", file=sys.stderr)
        return 2
    except KafkaError as error:
        print(f"aioproducer failed: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "aiokafka" not in type(error).__module__:
            raise
        print(f"aiokafka failed: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
