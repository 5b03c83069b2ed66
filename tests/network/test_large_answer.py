"""Responses about very many partitions: other tasks run while one is merged, and never see it half merged."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from random import Random
from time import process_time
from uuid import UUID

import pytest

from aioproducer.cluster import LeaderHint
from aioproducer.concurrency.wakeup import WakeUp
from aioproducer.core import Core
from aioproducer.errors import BrokerConnectionError, ProtocolError
from aioproducer.network.large_answer import LargeAnswer
from aioproducer.protocol.api import encode_response
from aioproducer.protocol.messages import MetadataResponse
from aioproducer.records.accumulator import Accumulator
from aioproducer.records.compressor import BatchCompressor
from tests.support.scripted_broker import HOST, LONG, Net, Peer, ScriptedBroker, until

Broker = MetadataResponse.MetadataResponseBroker
Partition = MetadataResponse.MetadataResponsePartition
Topic = MetadataResponse.MetadataResponseTopic


def answer_about(port: int, names: list[str], partitions: int, epoch: int) -> MetadataResponse:
    """Create a response in which all leaders differ from those of the previous epoch."""
    same = [
        Partition(
            partition_index=number,
            leader_id=(number + epoch) % 3,
            leader_epoch=epoch,
            replica_nodes=[0, 1, 2],
            isr_nodes=[0, 1, 2],
        )
        for number in range(partitions)
    ]
    return MetadataResponse(
        brokers=[Broker(node_id=number, host=HOST, port=port) for number in range(3)],
        cluster_id="test",
        topics=[
            Topic(name=name, topic_id=UUID(int=number), partitions=same)
            for number, name in enumerate(names, start=1)
        ],
    )


class Teller(ScriptedBroker):
    """A broker that answers each request for topics with the next epoch. The frames are encoded in advance."""

    def __init__(self, topics: int, partitions: int, answers: int) -> None:
        super().__init__(self._tell)
        self.names = [f"topic-{number}" for number in range(topics)]
        self._partitions = partitions
        self._answers = answers
        self._frames: list[bytes] = []

    async def __aenter__(self) -> Teller:
        await super().__aenter__()
        for epoch in range(1, self._answers + 1):
            answer = answer_about(self.port, self.names, self._partitions, epoch)
            self._frames.append(b"".join(encode_response(answer, 13, 0)))
        return self

    async def _tell(self, peer: Peer) -> None:
        await peer.handshake()
        while True:
            header, request = await peer.request()
            if request.topics:
                frame = self._frames.pop(0)
                peer.writer.write(frame[:4] + header.correlation_id.to_bytes(4, "big") + frame[8:])
            else:
                first = MetadataResponse(
                    brokers=[Broker(node_id=0, host=HOST, port=self.port)], cluster_id="test"
                )
                peer.answer(header, first)


async def ask(net: Net, names: list[str]) -> None:
    """Request these topics in a single request."""
    for name in names:
        net.metadata.touch(name)
    net.metadata.request_update()


async def merging(net: Net) -> None:
    async with asyncio.timeout(LONG):
        while net.metadata._learned is None:  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0)


@pytest.fixture
def without_collector():
    """Disable Python's garbage collector, whose runs do not depend on metadata. A full collection stops all
    tasks for 250 ms with the 850,000 objects of a producer that writes to 100,000 partitions."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata of 100,000 partitions are validated in one go and applied in slices of 250, between which "
    "other tasks run; the snapshot changes once, when it is complete, and includes what was learned "
    "meanwhile",
)
@pytest.mark.slow
async def test_metadata_of_100000_partitions_in_use_blocks_the_loop_for_less_than_200_ms(
    without_collector,
):
    async with Teller(10_000, 10, answers=4) as teller, Net(teller.address, batch_size=200) as net:
        await net.start()
        loop = asyncio.get_running_loop()
        accumulator = Accumulator(
            Core(net.config, loop, WakeUp(loop), net.metrics, Random(1)),
            partial(BatchCompressor, net.config, loop),
        )
        await ask(net, teller.names)
        await until(lambda: net.metadata.topic(teller.names[-1]))
        for name in teller.names:
            for queue in accumulator.open_topic(net.metadata.topic(name)).queues:
                assert accumulator.open_batch(queue, 100) is not None
        longest = []

        for epoch in (2, 3, 4):
            version, turns, standstill = net.metadata.version, 0, 0.0
            net.metadata.request_update()
            began = process_time()
            while net.metadata.version == version:
                await asyncio.sleep(0)
                now = process_time()
                standstill, began, turns = max(standstill, now - began), now, turns + 1
            accumulator.update_leaders(net.metadata.cluster)  # the sender does this next
            standstill, began = max(standstill, process_time() - began), process_time()
            while not accumulator.assign_leaders():
                standstill, began = max(standstill, process_time() - began), process_time()
            longest.append(standstill)

            assert turns > 100
            leaders = [queue.node_id for queue in accumulator.topics[teller.names[-1]].queues]
            assert leaders == [(number + epoch) % 3 for number in range(10)]

        # Measure processor time and take the best of three runs, so that other load on
        # this machine does not count.
        assert min(longest) < 0.2, longest


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata of 100,000 partitions are validated in one go and applied in slices of 250, between which "
    "other tasks run; the snapshot changes once, when it is complete, and includes what was learned "
    "meanwhile",
)
async def test_other_tasks_see_the_previous_snapshot_until_the_next_one_is_complete():
    async with Teller(3, 2000, answers=2) as teller, Net(teller.address) as net:
        await net.start()
        await ask(net, teller.names)
        await until(lambda: net.metadata.topic("topic-2"))
        before = net.metadata.cluster
        net.metadata.request_update()
        await merging(net)
        turns = 0

        while net.metadata._learned is not None:
            turns += 1
            assert net.metadata.cluster is before
            await asyncio.sleep(0)

        assert turns >= 6000 // 250 - 1
        await until(lambda: net.metadata.cluster is not before)
        epochs = {p.leader_epoch for topic in net.metadata.cluster.topics.values() for p in topic.partitions}
        assert epochs == {2}


@pytest.mark.promise(
    "Accumulator, sender, connections",
    "metadata of 100,000 partitions are validated in one go and applied in slices of 250, between which "
    "other tasks run; the snapshot changes once, when it is complete, and includes what was learned "
    "meanwhile",
)
async def test_a_leader_hint_that_arrives_while_a_response_is_merged_is_not_lost():
    async with Teller(1, 2000, answers=2) as teller, Net(teller.address) as net:
        await net.start()
        await ask(net, teller.names)
        await until(lambda: net.metadata.topic("topic-0"))
        net.metadata.request_update()
        await merging(net)

        assert net.metadata.apply_leader_hints([LeaderHint("topic-0", 0, 1, 9)], [])
        assert net.metadata.cluster.partition("topic-0", 0).leader_epoch == 9
        assert net.metadata.cluster.partition("topic-0", 1).leader_epoch == 1

        await until(lambda: net.metadata.cluster.partition("topic-0", 1).leader_epoch == 2)
        assert net.metadata.cluster.partition("topic-0", 0)[2:4] == (1, 9)
        assert not net.metadata.apply_leader_hints([LeaderHint("topic-0", 0, 2, 9)], []), (
            "the hint contains nothing new"
        )


def refuse_nothing(error: ProtocolError) -> BrokerConnectionError:
    raise AssertionError from error


async def test_other_tasks_run_after_each_slice_and_the_last_one_returns_the_message():
    events = []

    def slices():
        for number in range(3):
            events.append(f"slice {number}")
            yield
        return "the message"

    async def watch() -> None:
        while True:
            events.append("turn")
            await asyncio.sleep(0)

    answer = LargeAnswer(slices(), refuse_nothing)
    assert events == [], "nothing is decoded before a task waits for it"
    watching = asyncio.create_task(watch())

    assert await answer.decoded() == "the message"

    watching.cancel()
    assert events[:5] == ["slice 0", "turn", "slice 1", "turn", "slice 2"]


async def test_a_malformed_frame_closes_the_connection_and_raises_its_error():
    closed = []

    def slices():
        yield
        raise ProtocolError("a count of -7")

    def refuse(error: ProtocolError) -> BrokerConnectionError:
        closed.append(error)
        return BrokerConnectionError(f"broker 1: {error}", written=True)

    with pytest.raises(BrokerConnectionError, match="broker 1: a count of -7") as caught:
        await LargeAnswer(slices(), refuse).decoded()

    assert [str(error) for error in closed] == ["a count of -7"]
    assert caught.value.written is True


async def test_a_bug_in_the_decoder_is_not_blamed_on_the_broker():
    def slices():
        yield
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await LargeAnswer(slices(), refuse_nothing).decoded()
