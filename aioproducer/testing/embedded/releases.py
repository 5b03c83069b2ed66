"""The API versions of each Kafka release; `EmbeddedCluster(versions=...)` limits its brokers to those of one release.

Besides Kafka releases, one other service can be imitated: Azure Event Hubs, which supports Kafka's protocol with some
limitations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aioproducer.protocol.api import ApiKey, VersionRange
from aioproducer.protocol.compression import Codec

EVENT_HUBS = "azure-event-hubs"

RELEASES = tuple(
    "0.11 1.0 1.1 2.0 2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 "
    "3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8 3.9 4.0 4.1 4.2 4.3".split()
)
"""Kafka's releases, in order."""

# "2.1:7" means that Kafka 2.1 is the first release with version 7. Releases before the first one listed lack the API.
_SINCE: dict[ApiKey, str] = {
    # 7: zstd (KIP-110). 8: errors per record (KIP-467). 10: the new leader in the response (KIP-951).
    # 12: transactions v2 (KIP-890). 13: topic ids (KIP-516).
    ApiKey.PRODUCE: "0.11:3 1.0:5 2.0:6 2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
    # 13: topic ids (KIP-516).
    ApiKey.FETCH: "0.11:5 1.0:6 1.1:7 2.0:8 2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.1:18",
    ApiKey.LIST_OFFSETS: "0.11:2 2.0:3 2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10 4.2:11",
    # 10: topic ids (KIP-516). 13: an error for the whole response (KIP-1102).
    ApiKey.METADATA: "0.11:4 1.0:5 2.0:6 2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13",
    # 6: leader epochs (KIP-320). 7: static members (KIP-345). 10: topic ids.
    ApiKey.OFFSET_COMMIT: "0.11:3 2.0:4 2.1:6 2.3:7 2.4:8 3.7:9 4.2:10",
    ApiKey.OFFSET_FETCH: "0.11:3 2.0:4 2.1:5 2.4:6 2.5:7 3.0:8 3.7:9 4.2:10",
    # 4: several keys at once (KIP-699).
    ApiKey.FIND_COORDINATOR: "0.11:1 2.0:2 2.4:3 3.0:4 3.8:5 3.9:6",
    # 4: the first request gets a member id (KIP-394). 5: static members (KIP-345). 9: skip_assignment (KIP-814).
    ApiKey.JOIN_GROUP: "0.11:2 2.0:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9",
    ApiKey.HEARTBEAT: "0.11:1 2.0:2 2.3:3 2.4:4",
    ApiKey.LEAVE_GROUP: "0.11:1 2.0:2 2.4:4 3.2:5",
    ApiKey.SYNC_GROUP: "0.11:1 2.0:2 2.3:3 2.4:4 2.5:5",
    ApiKey.SASL_HANDSHAKE: "0.11:0 1.0:1",
    # 3: the client's name and version (KIP-511).
    ApiKey.API_VERSIONS: "0.11:1 2.0:2 2.4:3 3.9:4",
    ApiKey.CREATE_TOPICS: "0.11:2 2.0:3 2.4:5 2.7:6 2.8:7",
    # 3: the request contains the old epoch (KIP-360). 4: PRODUCER_FENCED (KIP-588).
    ApiKey.INIT_PRODUCER_ID: "0.11:0 2.0:1 2.4:2 2.5:3 2.7:4 3.8:5",
    # 4: used only between brokers (KIP-890).
    ApiKey.ADD_PARTITIONS_TO_TXN: "0.11:0 2.0:1 2.7:2 2.8:3 3.6:4 3.8:5",
    ApiKey.ADD_OFFSETS_TO_TXN: "0.11:0 2.0:1 2.7:2 2.8:3 3.8:4",
    # 5: bumps the epoch (KIP-890).
    ApiKey.END_TXN: "0.11:0 2.0:1 2.7:2 2.8:3 3.8:4 4.0:5",
    # 5: adds the group to the transaction (KIP-890).
    ApiKey.TXN_OFFSET_COMMIT: "0.11:0 2.0:1 2.1:2 2.5:3 3.8:4 4.0:5",
    # 1: the lifetime of the session (KIP-368).
    ApiKey.SASL_AUTHENTICATE: "1.0:0 2.2:1 2.5:2",
    # The state of producers (KIP-664).
    ApiKey.DESCRIBE_PRODUCERS: "2.8:0",
    # Metrics of clients (KIP-714).
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "3.7:0",
    ApiKey.PUSH_TELEMETRY: "3.7:0",
}

_EVENT_HUBS_CEILINGS: dict[ApiKey, int] = {
    # According to clients' logs, Event Hubs serves Metadata without topic ids (9) and OffsetFetch 8, even though its
    # Produce has topic ids (13). One client works around this combination. The other versions match a Kafka release
    # of the same age.
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 8,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.END_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.SASL_AUTHENTICATE: 1,
}

_SERVED: dict[ApiKey, VersionRange] = {
    ApiKey.PRODUCE: VersionRange(3, 13),
    ApiKey.FETCH: VersionRange(4, 12),
    ApiKey.LIST_OFFSETS: VersionRange(1, 7),
    ApiKey.METADATA: VersionRange(0, 13),
    ApiKey.FIND_COORDINATOR: VersionRange(0, 6),
    ApiKey.API_VERSIONS: VersionRange(0, 4),
    ApiKey.CREATE_TOPICS: VersionRange(2, 7),
    ApiKey.INIT_PRODUCER_ID: VersionRange(0, 5),
    ApiKey.ADD_PARTITIONS_TO_TXN: VersionRange(0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: VersionRange(0, 4),
    ApiKey.END_TXN: VersionRange(0, 5),
    ApiKey.TXN_OFFSET_COMMIT: VersionRange(0, 5),
    ApiKey.OFFSET_COMMIT: VersionRange(2, 9),
    ApiKey.OFFSET_FETCH: VersionRange(1, 8),
    ApiKey.JOIN_GROUP: VersionRange(0, 9),
    ApiKey.HEARTBEAT: VersionRange(0, 4),
    ApiKey.LEAVE_GROUP: VersionRange(0, 5),
    ApiKey.SYNC_GROUP: VersionRange(0, 5),
    ApiKey.SASL_HANDSHAKE: VersionRange(0, 1),
    ApiKey.SASL_AUTHENTICATE: VersionRange(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: VersionRange(0, 0),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: VersionRange(0, 0),
    ApiKey.PUSH_TELEMETRY: VersionRange(0, 0),
}
"""The versions that the handlers support."""
_TELEMETRY = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)


@dataclass(frozen=True, slots=True)
class Release:
    """The broker properties that depend on the release."""

    name: str
    versions: Mapping[ApiKey, VersionRange]
    """The versions of each API that the brokers serve."""
    refuses_newer_api_versions: bool = True
    """True if a broker answers an ApiVersions request that is too new by listing the supported versions (KIP-511). If
    False, it closes the connection."""
    codecs: frozenset[Codec] = frozenset(Codec)
    """The codecs with which a batch may be compressed."""
    answers_acks_0: bool = False
    """True if even a Produce request with acks=0 gets a response."""
    idempotence_needs_cluster_acl: bool = False
    """True if idempotent writes need IDEMPOTENT_WRITE on the cluster. Since KIP-679, WRITE on a topic is enough."""
    verifies_transactions: bool = False
    """True if a leader asks the coordinator before it appends the first batch in a transaction (KIP-890)."""
    transaction_version: int = 0
    """The highest level of the transaction.version feature; 0: the release does not have it."""
    is_before_4: bool = True
    """True if topics have the settings and the defaults of releases before Kafka 4.0 (KIP-724, KIP-937, KIP-1030)."""


def release_named(name: str, *, collects_metrics: bool = False) -> Release:
    """Return the release with this name: a Kafka release such as "2.1" or "4.1", or "azure-event-hubs".

    Brokers offer the APIs of KIP-714 only if they have a plugin that collects client metrics.

    The imitation of Event Hubs follows reports from users of Kafka clients. Its Metadata has no topic ids, even though
    its Produce does. It closes the connection on ApiVersions 4, rejects every compression codec except gzip with
    UNSUPPORTED_FOR_MESSAGE_FORMAT, and answers Produce requests even with acks=0.

    Raises:
        ValueError: there is no such release.
    """
    if name == EVENT_HUBS:
        return Release(
            name,
            _served(_EVENT_HUBS_CEILINGS, collects_metrics=False),
            refuses_newer_api_versions=False,
            codecs=frozenset({Codec.NONE, Codec.GZIP}),
            answers_acks_0=True,
        )
    if name not in RELEASES:
        raise ValueError(f"versions={name!r} is not one of {', '.join(RELEASES)}, {EVENT_HUBS}")
    place = RELEASES.index(name)
    return Release(
        name,
        _served(_ceilings(name), collects_metrics=collects_metrics),
        idempotence_needs_cluster_acl=place < RELEASES.index("2.8"),
        verifies_transactions=place >= RELEASES.index("3.6"),
        transaction_version=2 if place >= RELEASES.index("4.0") else 0,
        is_before_4=place < RELEASES.index("4.0"),
    )


def _ceilings(release: str) -> dict[ApiKey, int]:
    """Return the highest version of each API in the release."""
    ceilings = {}
    for api_key, row in _SINCE.items():
        for step in row.split():
            since, _, version = step.partition(":")
            if RELEASES.index(since) <= RELEASES.index(release):
                ceilings[api_key] = int(version)
    return ceilings


def _served(ceilings: Mapping[ApiKey, int], *, collects_metrics: bool) -> dict[ApiKey, VersionRange]:
    return {
        api_key: VersionRange(served.min, min(served.max, ceilings[api_key]))
        for api_key, served in _SERVED.items()
        if api_key in ceilings
        and served.min <= ceilings[api_key]
        and (collects_metrics or api_key not in _TELEMETRY)
    }


def advertised(served: Mapping[ApiKey, VersionRange]) -> dict[ApiKey, VersionRange]:
    """Return the versions to advertise in the ApiVersions response.

    Kafka 4 serves Produce from version 3 on but advertises 0, because older versions of librdkafka would otherwise not
    compress batches (KAFKA-18659)."""
    produce = served[ApiKey.PRODUCE]
    return {**served, ApiKey.PRODUCE: VersionRange(0, produce.max)}
