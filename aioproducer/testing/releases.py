"""Which versions of each API a Kafka release speaks: the ceilings behind `EmbeddedCluster(versions=...)`."""

from __future__ import annotations

from aioproducer.protocol.api import ApiKey, VersionRange

_APIS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
)

# Highest versions, a column per API above.
_CEILINGS: dict[str, tuple[int, ...]] = {
    #       Produce  Fetch  ListOffsets  Metadata  FindCoordinator  ApiVersions  CreateTopics  InitProducerId
    "0.11": (3, 5, 2, 4, 1, 1, 2, 0),
    "1.0": (5, 6, 2, 5, 1, 1, 2, 0),
    "1.1": (5, 7, 2, 5, 1, 1, 2, 0),
    "2.0": (6, 8, 3, 6, 2, 2, 3, 1),
    "2.1": (7, 10, 4, 7, 2, 2, 3, 1),  # KIP-110: zstd
    "2.2": (7, 10, 5, 7, 2, 2, 3, 1),
    "2.3": (7, 11, 5, 8, 2, 2, 3, 1),
    "2.4": (8, 11, 5, 9, 3, 3, 5, 2),  # KIP-467: errors per record; KIP-511: ApiVersions 3
    "2.5": (8, 11, 5, 9, 3, 3, 5, 3),  # KIP-360: InitProducerId with the old epoch
    "2.6": (8, 11, 5, 9, 3, 3, 5, 3),
    "2.7": (8, 12, 5, 9, 3, 3, 6, 4),
    "2.8": (9, 12, 6, 11, 3, 3, 7, 4),
    "3.0": (9, 12, 7, 11, 4, 3, 7, 4),
    "3.1": (9, 13, 7, 12, 4, 3, 7, 4),  # KIP-516: topic ids in Fetch
    "3.5": (9, 15, 8, 12, 4, 3, 7, 4),
    "3.7": (10, 16, 8, 12, 4, 3, 7, 4),  # KIP-951: the new leader in the answer
    "3.8": (11, 16, 8, 12, 5, 3, 7, 5),
    "3.9": (11, 17, 9, 12, 6, 4, 7, 5),
    "4.0": (12, 17, 10, 13, 6, 4, 7, 5),  # KIP-1102: error code of the whole Metadata answer
    "4.1": (13, 18, 10, 13, 6, 4, 7, 5),  # KIP-516: topic ids in Produce
    "4.2": (13, 18, 11, 13, 6, 4, 7, 5),
    "4.3": (13, 18, 11, 13, 6, 4, 7, 5),
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
}
"""What the handlers can do at all."""


def served_versions(release: str) -> dict[ApiKey, VersionRange]:
    """The versions that a broker of that release serves here.

    Raises:
        ValueError: the release is not in the table.
    """
    if release not in _CEILINGS:
        raise ValueError(f"versions={release!r} is not one of {', '.join(_CEILINGS)}")
    ceilings = dict(zip(_APIS, _CEILINGS[release], strict=True))
    return {
        api_key: VersionRange(served.min, min(served.max, ceilings[api_key]))
        for api_key, served in _SERVED.items()
    }


def advertised(served: dict[ApiKey, VersionRange]) -> dict[ApiKey, VersionRange]:
    """What ApiVersions answers.

    Kafka 4 serves Produce from version 3 on but claims to know 0, else older librdkafka would not compress
    (KAFKA-18659)."""
    produce = served[ApiKey.PRODUCE]
    return {**served, ApiKey.PRODUCE: VersionRange(0, produce.max)}
