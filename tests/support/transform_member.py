"""A process that is one member of a group: it copies one topic to another with a TransformLoop.

    python -m tests.support.transform_member KIND SERVERS TRANSACTIONAL_ID INPUT OUTPUT

The process prints "open" while a transaction is open, and "done COUNT" after a commit. A line on its standard input
stops it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

from aioproducer import Producer, TransformLoop
from tests.support.transforming import AIOKAFKA, copy, new_consumer

SESSION_MS = 3000
TRANSACTION_MS = 30_000
OPEN_SECONDS = 0.02
"""How long a transaction stays open after its records are written."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def member_consumer(kind: str, servers: str, group: str) -> Any:
    """A consumer with a short session time-out, so that a dead one soon leaves its group."""
    settings: dict[str, Any] = {"session_timeout_ms": SESSION_MS}
    if kind == AIOKAFKA:
        settings["rebalance_timeout_ms"] = 10_000
    return new_consumer(kind, servers, group=group, heartbeat_ms=300, **settings)


async def main(kind: str, servers: str, name: str, source: str, target: str) -> None:
    consumer = member_consumer(kind, servers, f"copies-{source}")
    if kind == AIOKAFKA:
        await consumer.start()
    try:
        async with (
            Producer(servers, transactional_id=name, transaction_timeout_ms=TRANSACTION_MS) as producer,
            TransformLoop(producer, consumer, [source], max_records=50, poll_timeout=0.2) as loop,
        ):
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), loop.stop)
            async for batch in loop:
                async with batch:
                    await copy(batch, producer, target)
                    await producer.flush()
                    say("open")
                    await asyncio.sleep(OPEN_SECONDS)
                if batch.is_committed:
                    say(f"done {len(batch)}")
    finally:
        if kind == AIOKAFKA:
            await consumer.stop()
        else:
            await asyncio.to_thread(consumer.close)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        asyncio.run(main(*sys.argv[1:]))
