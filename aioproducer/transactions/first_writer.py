"""Asks the leaders of partitions whether another producer has already written to them in the same transaction.

On topics with LogAppendTime, a participant asks before it sends its first record to a partition. On these topics, the
response to that record would not reveal another writer: the broker drops a batch with the sequence numbers of an
earlier one, and reports success."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import Random

from aioproducer.config import ProducerConfig
from aioproducer.errors import (
    BrokerError,
    KafkaError,
    TransactionAbortableError,
    TransactionTimeoutError,
    UnsupportedVersionError,
)
from aioproducer.network.backoff import backoff
from aioproducer.network.brokers import Brokers
from aioproducer.network.metadata import Metadata
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from aioproducer.protocol.outcomes import Action, advice, decide, decide_failure, failure_of
from aioproducer.records.accumulator import NO_NODE
from aioproducer.types import TopicPartition, TransactionHandle


class FirstWriter:
    """The check that one participant makes. Belongs to one event loop."""

    def __init__(
        self,
        config: ProducerConfig,
        brokers: Brokers,
        metadata: Metadata,
        random: Random,
        handle: TransactionHandle,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._metadata = metadata
        self._random = random
        self._handle = handle
        self._last_error: KafkaError | None = None

    async def check(self, places: Iterable[TopicPartition]) -> None:
        """Check that no producer has written to any of the partitions in the transaction.

        Raises:
            TransactionAbortableError: another producer has written to the partitions in the error's `partitions`.
            TransactionTimeoutError: not all leaders answered within max_block_ms.
            UnsupportedVersionError: a broker is older than Kafka 2.8.
            BrokerError: a broker rejected the request, e.g. because the client is not authorized to read the topic.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.max_block
        waiting, failures = set(places), 0
        while waiting:
            for group in self._by_leader(waiting):
                waiting -= await self._answered(*group)
            if waiting:
                left = deadline - loop.time()
                if left <= 0:
                    raise self._too_late(waiting)
                self._metadata.request_update()
                pause = backoff(
                    self._config.retry_backoff, self._config.retry_backoff_max, failures, self._random
                )
                await asyncio.sleep(min(pause, left))
                failures += 1

    def _by_leader(self, places: Iterable[TopicPartition]) -> Sequence[tuple[int, list[TopicPartition]]]:
        """Return the partitions that have a leader, grouped by leader.

        This method must not wait for metadata: close() ends such waits when it begins, but still sends the buffered
        records.
        """
        found: dict[int, list[TopicPartition]] = {}
        for place in sorted(places):
            known = self._metadata.cluster.partition(place.topic, place.partition)
            if known is not None and known.leader != NO_NODE:
                found.setdefault(known.leader, []).append(place)
        return list(found.items())

    async def _answered(self, leader: int, places: list[TopicPartition]) -> set[TopicPartition]:
        """Ask one broker. Return the partitions that it has answered for."""
        topics: dict[str, list[int]] = {}
        for place in places:
            topics.setdefault(place.topic, []).append(place.partition)
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(name=name, partition_indexes=numbers)
                for name, numbers in topics.items()
            ]
        )
        try:
            response = await self._brokers.request_node(leader, request, self._config.request_timeout)
        except KafkaError as error:
            if decide_failure(failure_of(error)).action is Action.FAIL:  # no common version
                raise UnsupportedVersionError(
                    f"log_append_time=True requires Kafka 2.8 or later to list the writers of a partition: {error}"
                ) from error
            self._last_error = error
            return set()
        return self._read(set(places), response)

    def _read(self, asked: set[TopicPartition], response: DescribeProducersResponse) -> set[TopicPartition]:
        """Return the partitions that no producer has written to in the transaction, according to their leader."""
        answers = {
            TopicPartition(topic.name, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        done = {
            place for place in asked & answers.keys() if self._accept_answer(place, answers[place].error_code)
        }
        taken = {
            place
            for place in done
            if any(_is_of(self._handle, state) for state in answers[place].active_producers)
        }
        if taken:
            names = ", ".join(f"{place.topic}-{place.partition}" for place in sorted(taken))
            raise TransactionAbortableError(
                f"another producer has written to {names} in the same transaction; abort and repeat the transaction",
                transactional_id=self._handle.transactional_id,
                partitions=frozenset(taken),
            )
        return done

    def _accept_answer(self, place: TopicPartition, code: int) -> bool:
        """Return True if the code means success, or False if the request must be repeated. Raise any other error."""
        action = decide(ApiKey.DESCRIBE_PRODUCERS, code).action
        if action is Action.SUCCEED:
            return True
        name = error_name(code)
        self._last_error = BrokerError(
            f"a broker did not list the writers of {place.topic}-{place.partition}: {name}{advice(code)}",
            code=code,
            name=name,
        )
        if action is not Action.RETRY:
            raise self._last_error
        return False

    def _too_late(self, waiting: set[TopicPartition]) -> TransactionTimeoutError:
        place = min(waiting)
        why = "no leader is known" if self._last_error is None else f"the last error was: {self._last_error}"
        return TransactionTimeoutError(
            f"the leader of {place.topic}-{place.partition} did not list its writers within "
            f"{self._config.max_block:g} s (max_block_ms); {why}",
            transactional_id=self._handle.transactional_id,
        )


def _is_of(handle: TransactionHandle, state: DescribeProducersResponse.ProducerState) -> bool:
    """Return whether a producer has written under the transaction's epoch. A marker has no sequence number."""
    return (state.producer_id, state.producer_epoch) == (
        handle.producer_id,
        handle.epoch,
    ) and state.last_sequence >= 0
