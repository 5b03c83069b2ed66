"""Topic settings, under Kafka's names: the valid values of each, and the settings that affect the embedded cluster.

The other settings are only validated. Retention, for example, has no effect: the log keeps every record that it has
accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from aioproducer.protocol.compression import Codec

NO_LIMIT = 2**63 - 1
"""Java's Long.MAX_VALUE: any timestamp is accepted."""

HOUR_MS = 3_600_000

PRODUCERS_CODEC = "producer"
"""The compression.type that keeps the producer's codec."""

_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec if codec}}
_INT, _LONG = 2**31 - 1, 2**63 - 1


def _number(low: int, high: int = _LONG) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return parse


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return value


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"is not one of {', '.join(names)}")
        return text

    return parse


def _policies(text: str) -> str:
    for name in filter(None, text.split(",")):
        _one_of("compact", "delete")(name.strip())
    return text


def _switch(text: str) -> bool:
    return _one_of("true", "false")(text.strip().lower()) == "true"


def _gzip_level(text: str) -> int:
    level = _number(-1, 9)(text)
    if level == 0:
        raise ValueError("must be -1 or from 1 to 9")
    return level


def _throttled_replicas(text: str) -> str:
    if text not in ("", "*") and not re.fullmatch(r"\d+:\d+(, *\d+:\d+)*", text):
        raise ValueError("is neither * nor a list of partition:broker pairs")
    return text


_CHECKS: dict[str, Callable[[str], object]] = {
    "cleanup.policy": _policies,
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _number(1, 17),
    "compression.type": _one_of(PRODUCERS_CODEC, *_CODECS),
    "compression.zstd.level": _number(-131_072, 22),
    "delete.retention.ms": _number(0),
    "file.delete.delay.ms": _number(0),
    "flush.messages": _number(1),
    "flush.ms": _number(0),
    "follower.replication.throttled.replicas": _throttled_replicas,
    "index.interval.bytes": _number(0, _INT),
    "leader.replication.throttled.replicas": _throttled_replicas,
    "local.retention.bytes": _number(-2),
    "local.retention.ms": _number(-2),
    "max.compaction.lag.ms": _number(1),
    "max.message.bytes": _number(0, _INT),
    "message.timestamp.after.max.ms": _number(0),
    "message.timestamp.before.max.ms": _number(0),
    "message.timestamp.type": _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _number(0),
    "min.insync.replicas": _number(1, _INT),
    "preallocate": _switch,
    "remote.log.copy.disable": _switch,
    "remote.log.delete.on.disable": _switch,
    "remote.storage.enable": _switch,
    "retention.bytes": _number(-1),
    "retention.ms": _number(-1),
    "segment.bytes": _number(1024 * 1024, _INT),
    "segment.index.bytes": _number(4, _INT),
    "segment.jitter.ms": _number(0),
    "segment.ms": _number(1),
    "unclean.leader.election.enable": _switch,
}
"""Kafka's LogConfig: the settings of a topic, and the valid values of each."""

_CHECKS_BEFORE_4: dict[str, Callable[[str], object]] = {
    **_CHECKS,
    "message.downconversion.enable": _switch,
    "message.format.version": str,
    "message.timestamp.difference.max.ms": _number(0),
    "segment.bytes": _number(14, _INT),
}
"""The settings before Kafka 4.0, which removed three of them (KIP-724, KIP-937) and raised the minimum of segment.bytes
(KIP-1030)."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The topic settings that affect the embedded cluster, by Kafka's names with underscores instead of dots."""

    cleanup_policy: str = "delete"
    compression_type: str = PRODUCERS_CODEC
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = HOUR_MS
    message_timestamp_before_max_ms: int = NO_LIMIT
    message_timestamp_type: str = "CreateTime"
    min_insync_replicas: int = 1
    segment_bytes: int = 1024 * 1024 * 1024
    is_before_4: bool = False
    """True for a topic in a release before Kafka 4.0; such topics have more settings. This field itself is not a
    setting."""

    @classmethod
    def of_broker(cls, *, is_before_4: bool, max_message_bytes: int, min_insync_replicas: int) -> LogConfig:
        """Return a broker's defaults. Before Kafka 4.0, timestamps were not limited."""
        return cls(
            max_message_bytes=max_message_bytes,
            message_timestamp_after_max_ms=NO_LIMIT if is_before_4 else HOUR_MS,
            min_insync_replicas=min_insync_replicas,
            is_before_4=is_before_4,
        )

    @property
    def is_compacted(self) -> bool:
        """True if the topic is compacted; every record then needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def uses_log_append_time(self) -> bool:
        """True if the broker's time replaces the timestamps of the records."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def codec(self) -> Codec | None:
        """The codec with which every batch is compressed; None keeps the producer's choice."""
        return _CODECS.get(self.compression_type)

    def changed(self, settings: Mapping[str, str | None]) -> LogConfig:
        """Return this config with some settings changed.

        Settings are written as in Kafka: {"max.message.bytes": "1000"}.

        Raises:
            ValueError: a name is unknown or a value is invalid.
        """
        checks = _CHECKS_BEFORE_4 if self.is_before_4 else _CHECKS
        checked: dict[str, object] = {}
        for name, text in settings.items():
            if name not in checks or text is None:
                raise ValueError(f"unknown topic config {name}={text}")
            try:
                checked[name] = checks[name](text)
            except ValueError as error:
                raise ValueError(f"topic config {name}={text}: {error}") from None
        lags = checked.get("min.compaction.lag.ms", 0), checked.get("max.compaction.lag.ms", NO_LIMIT)
        if lags[0] > lags[1]:  # type: ignore[operator]  # both are numbers
            raise ValueError(
                f"topic config min.compaction.lag.ms={lags[0]} exceeds max.compaction.lag.ms={lags[1]}"
            )
        difference = checked.get("message.timestamp.difference.max.ms")
        if difference is not None:
            checked.setdefault("message.timestamp.after.max.ms", difference)
            checked.setdefault("message.timestamp.before.max.ms", difference)
        values = {name.replace(".", "_"): value for name, value in checked.items()}
        values = {field: value for field, value in values.items() if field in self.__slots__}
        return replace(self, **values)  # type: ignore[arg-type]  # the values have several types
