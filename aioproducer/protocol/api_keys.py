"""Kafka's API keys and, for each, the versions that the producer may use.

The declaration of a message lists all versions that can be encoded and decoded. The ranges in CLIENT_VERSIONS
are narrower, since the embedded broker must also support versions that other clients send.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """The APIs whose messages are declared in this package, under Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72


class VersionRange(NamedTuple):
    """The versions from `min` to `max`, inclusive."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}-{self.max}"


CLIENT_VERSIONS: dict[ApiKey, VersionRange] = {
    ApiKey.PRODUCE: VersionRange(7, 13),
    ApiKey.FETCH: VersionRange(4, 13),
    ApiKey.LIST_OFFSETS: VersionRange(1, 7),
    ApiKey.METADATA: VersionRange(7, 13),
    ApiKey.OFFSET_COMMIT: VersionRange(2, 9),
    ApiKey.OFFSET_FETCH: VersionRange(5, 8),
    ApiKey.FIND_COORDINATOR: VersionRange(1, 6),
    ApiKey.JOIN_GROUP: VersionRange(0, 9),
    ApiKey.HEARTBEAT: VersionRange(0, 4),
    ApiKey.LEAVE_GROUP: VersionRange(0, 5),
    ApiKey.SYNC_GROUP: VersionRange(0, 5),
    ApiKey.SASL_HANDSHAKE: VersionRange(1, 1),
    ApiKey.API_VERSIONS: VersionRange(0, 4),
    ApiKey.CREATE_TOPICS: VersionRange(2, 7),
    ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
    # Versions from 4 are used only between brokers (KIP-890).
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
    ApiKey.END_TXN: VersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(2, 5),
    ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: VersionRange(0, 0),
    ApiKey.PUSH_TELEMETRY: VersionRange(0, 0),
}
"""The version ranges of the producer. The lower limits suit Kafka 2.1, the oldest supported broker, which has no
telemetry APIs and no DescribeProducers (added in Kafka 2.8)."""
