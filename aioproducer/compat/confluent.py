"""Producers with confluent-kafka's arguments: settings in a dict, values as str, headers in a dict, offsets in a list.

They have neither callbacks (`produce(on_delivery=)`) nor `poll`: `send` returns a future. docs/from-confluent-kafka.md
shows how to change the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from aioproducer import (
    ConsumerGroupMetadata,
    Delivery,
    RecordMetadata,
    blocking,
)
from aioproducer import Producer as AsyncProducer
from aioproducer.settings.entries import check_keywords, entries_of_mapping, resolve

if TYPE_CHECKING:
    from aioproducer.records.serializers import Serializer

__all__ = ["BlockingProducer", "Offset", "Producer"]

AnyHeaders = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
"""Headers as a dict or as a list of pairs; their values are bytes, str or None."""

PARTITION_UA = -1
"""librdkafka's number for "any partition"."""


class Offset(Protocol):
    """A partition with an offset, such as confluent_kafka.TopicPartition."""

    @property
    def topic(self) -> str:
        """The name of the topic."""

    @property
    def partition(self) -> int:
        """The number of the partition."""

    @property
    def offset(self) -> int:
        """The offset of the next record to read. A negative value means that the position is unknown."""


Offsets = Iterable[Offset] | Mapping[Any, Any]


class Producer(AsyncProducer[Any, Any]):
    """`aioproducer.Producer` with confluent-kafka's arguments.

        async with Producer({"bootstrap.servers": "localhost:9092", "linger.ms": 5}) as producer:
            await producer.send("orders", "text", key="42", headers={"source": "web"})

    Args:
        config: settings under their librdkafka, Java or aioproducer names.
        settings: settings as for `aioproducer.Producer`; they take precedence over `config`.

    A record's value, key and header values may be str, which is encoded as UTF-8; a serializer receives the str
    itself. Headers may be a dict. With partition=-1, the partitioner chooses the partition. The default partitioner
    is librdkafka's, "consistent_random", so each key stays in the partition that confluent-kafka chose.

    Raises:
        ConfigError: in the same cases as `aioproducer.Producer.from_config`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        try:
            check_keywords(settings)
            if config is not None:
                self._sourced = resolve(entries_of_mapping(config), settings)
                settings = dict(self._sourced.settings)
            if not any(name.startswith("partitioner") for name in settings):
                settings["partitioner"] = "consistent_random"
            super().__init__(**settings)
        finally:
            del config, settings  # a traceback that shows locals must not show passwords

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: AnyHeaders | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
    ) -> Delivery:
        """Put a record into the buffer and return its delivery; see `aioproducer.Producer.send`."""
        record = _record(
            self, topic, value, key, partition, timestamp_ms, headers, key_serializer, value_serializer
        )
        return await super().send(
            *record, timeout=timeout, key_serializer=key_serializer, value_serializer=value_serializer
        )

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: AnyHeaders | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement; see `aioproducer.Producer.send_and_wait`."""
        record = _record(
            self, topic, value, key, partition, timestamp_ms, headers, key_serializer, value_serializer
        )
        return await super().send_and_wait(
            *record, timeout=timeout, key_serializer=key_serializer, value_serializer=value_serializer
        )

    def try_send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: AnyHeaders | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
    ) -> Delivery:
        """Put a record into the buffer without waiting; see `aioproducer.Producer.try_send`."""
        record = _record(
            self, topic, value, key, partition, timestamp_ms, headers, key_serializer, value_serializer
        )
        return super().try_send(
            *record, timeout=timeout, key_serializer=key_serializer, value_serializer=value_serializer
        )

    async def send_offsets_to_transaction(
        self, offsets: Offsets, group_id: ConsumerGroupMetadata | str | bytes
    ) -> None:
        """Commit a consumer's position as part of the transaction.

        Args:
            offsets: a list of confluent_kafka.TopicPartition, such as `consumer.position(consumer.assignment())`, or a
                mapping as for `aioproducer.Producer`. Negative offsets, such as OFFSET_INVALID, are left out, as in
                librdkafka.
            group_id: the result of `consumer.consumer_group_metadata()`, a ConsumerGroupMetadata, or the group's id.

        Raises:
            KafkaError: the same errors as `aioproducer.Producer.send_offsets_to_transaction`.
        """
        await super().send_offsets_to_transaction(offsets, group_id)


class BlockingProducer(blocking.Producer[Any, Any]):
    """`aioproducer.blocking.Producer` with the same confluent-kafka arguments as `Producer`.

    with BlockingProducer({"bootstrap.servers": "localhost:9092"}) as producer:
        producer.send("orders", "text", key="42").result()
    """

    _asyncio_class = Producer

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Any) -> None:
        try:
            super().__init__(cast(Any, config), **settings)
        finally:
            del config, settings

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: AnyHeaders | None = None,
        *,
        timeout: float | None = None,
        key_serializer: Serializer[Any] | None = None,
        value_serializer: Serializer[Any] | None = None,
    ) -> blocking.Delivery:
        """Put a record into the buffer and return its delivery; see `aioproducer.blocking.Producer.send`."""
        # Convert the record here: only a record with bytes is queued without waiting.
        record = _record(
            self, topic, value, key, partition, timestamp_ms, headers, key_serializer, value_serializer
        )
        return super().send(
            *record, timeout=timeout, key_serializer=key_serializer, value_serializer=value_serializer
        )


Record = tuple[str, Any, Any, int | None, int | None, Any]


def _record(
    producer: Producer | BlockingProducer,
    topic: str,
    value: Any,
    key: Any,
    partition: int | None,
    timestamp_ms: int | None,
    headers: Any,
    key_serializer: Serializer[Any] | None,
    value_serializer: Serializer[Any] | None,
) -> Record:
    """Return the arguments for `aioproducer.Producer.send`, which rejects invalid ones."""
    config = producer.config
    if type(value) is str and value_serializer is None and config.value_serializer is None:
        value = value.encode()
    if type(key) is str and key_serializer is None and config.key_serializer is None:
        key = key.encode()
    if isinstance(headers, Mapping):
        headers = list(headers.items())
    if isinstance(headers, list | tuple) and any(_has_text(header) for header in headers):
        headers = [(header[0], header[1].encode()) if _has_text(header) else header for header in headers]
    return topic, value, key, None if partition == PARTITION_UA else partition, timestamp_ms, headers


def _has_text(header: Any) -> bool:
    return isinstance(header, tuple) and len(header) == 2 and type(header[1]) is str
