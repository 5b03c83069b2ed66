"""Conformance cases: functions that send raw requests to a broker and check the responses.

The same cases run on the embedded cluster and on real brokers. The topics of all cases are created at once, because
creating one takes longer on a real broker than most cases.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import CreateTopicsRequest, ListOffsetsRequest
from tests.conftest import MS
from tests.support.conformance.client import Client
from tests.support.conformance.quotas import PRODUCER_BYTE_RATE, set_quota

RELEASES = ("3.9", "4.3")
"""The releases that the suite knows; if they differ, a case has a value for each."""

Steps: TypeAlias = Callable[[Client], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """One case: its function, and the topic that only it uses."""

    name: str
    steps: Steps
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    producer_byte_rate: int | None = None
    """A quota for the case's client id, in bytes per second."""


CASES: dict[str, Case] = {}


def case(
    partitions: int = 1, *, producer_byte_rate: int | None = None, **config: object
) -> Callable[[Steps], Steps]:
    """Register a function as a case with a separate topic: `@case(2, max_message_bytes=1000)`."""

    def register(steps: Steps) -> Steps:
        name = steps.__name__
        assert name not in CASES, f"two cases are named {name}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        CASES[name] = Case(name, steps, partitions, settings, producer_byte_rate)
        return steps

    return register


@dataclass(frozen=True)
class Target:
    """A broker with the topics of some cases."""

    servers: str
    release: str
    run: str
    """The suffix of all topic names, so that a broker can be used more than once."""
    topic_ids: Mapping[str, uuid.UUID]

    async def check(self, one: Case) -> None:
        """Run a case."""
        topic = f"{one.name}-{self.run}"
        async with Client(self.servers, self.release, topic, self.topic_ids[topic]) as client:
            await one.steps(client)


async def prepare(
    servers: str, release: str, cases: Iterable[Case], limit: Callable[[str, float], None] | None = None
) -> Target:
    """Create the topics and quotas of these cases, and wait until the broker leads all partitions.

    Args:
        servers: The broker's address.
        release: One of RELEASES.
        cases: The cases that will run.
        limit: Sets the quota of a client id in bytes per second; None sends the request that Kafka's tools send.
    """
    wanted = list(cases)
    run = uuid.uuid4().hex[:8]
    nobody = Client(servers, release, "", uuid.UUID(int=0))
    async with nobody as client:
        for one in wanted:
            if one.producer_byte_rate is not None and limit is not None:
                limit(f"{one.name}-{run}", one.producer_byte_rate)
            elif one.producer_byte_rate is not None:
                await set_quota(client, f"{one.name}-{run}", PRODUCER_BYTE_RATE, one.producer_byte_rate)
        topics = [
            CreateTopicsRequest.CreatableTopic(
                name=f"{one.name}-{run}",
                num_partitions=one.partitions,
                replication_factor=1,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                    for name, value in one.config.items()
                ],
            )
            for one in wanted
        ]
        response = await client.ask(CreateTopicsRequest(topics=topics), 7)
        refused = {result.name: result.error_message for result in response.topics if result.error_code}
        assert not refused
        await wait_until_led(client, {topic.name: topic.num_partitions for topic in topics})
        return Target(servers, release, run, {result.name: result.topic_id for result in response.topics})


async def wait_until_led(client: Client, topics: Mapping[str, int]) -> None:
    """Wait until the broker leads each partition: it begins a little later than its metadata says."""
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)
                    for index in range(partitions)
                ],
            )
            for name, partitions in topics.items()
        ],
    )
    async with asyncio.timeout(30_000 * MS):
        while True:
            response = await client.ask(request, 7)
            if all(
                answer.error_code == ErrorCode.NONE
                for topic in response.topics
                for answer in topic.partitions
            ):
                return
            await asyncio.sleep(10 * MS)  # Kafka is another process and sets no events
