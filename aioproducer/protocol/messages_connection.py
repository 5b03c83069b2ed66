"""Messages for setting up a connection: API versions, then SASL."""

from __future__ import annotations

from aioproducer.protocol.api_keys import ApiKey
from aioproducer.protocol.schema import (
    NEVER,
    Message,
    Struct,
    array,
    boolean,
    byte_string,
    int16,
    int32,
    int64,
    string,
)

MOST_OFFERED = 1_000
"""The maximum number of APIs, features or mechanisms in a response; Kafka 4.3 has fewer than a hundred of each."""


class ApiVersionsResponse(Message, api_key=ApiKey.API_VERSIONS, versions=(0, 4), flexible_from=3):
    """The versions of each API that the broker supports. The response's header is always version 0, so any client can
    read it.

    1: throttle time. 3: features (KIP-584). 4: a supported feature may start at version 0.
    """

    class ApiVersion(Struct):
        api_key: int = int16()
        min_version: int = int16()
        max_version: int = int16()

    class SupportedFeatureKey(Struct):
        name: str = string()
        min_version: int = int16()
        max_version: int = int16()

    class FinalizedFeatureKey(Struct):
        name: str = string()
        max_version_level: int = int16()
        min_version_level: int = int16()

    error_code: int = int16()
    api_keys: list[ApiVersionsResponse.ApiVersion] = array("ApiVersion", most=MOST_OFFERED)
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = array(
        "SupportedFeatureKey", "3+", tag=0, ignorable=True, most=MOST_OFFERED
    )
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = array(
        "FinalizedFeatureKey", "3+", tag=2, ignorable=True, most=MOST_OFFERED
    )
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)


class ApiVersionsRequest(
    Message, api_key=ApiKey.API_VERSIONS, versions=(0, 4), flexible_from=3, response=ApiVersionsResponse
):
    """Asks for the API versions that the broker supports. 3: name and version of the client (KIP-511).

    A broker that does not support the version of the request answers UNSUPPORTED_VERSION in the format of version 0.
    """

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)


class SaslHandshakeResponse(Message, api_key=ApiKey.SASL_HANDSHAKE, versions=(0, 1), flexible_from=NEVER):
    """The mechanisms that the broker accepts."""

    error_code: int = int16()
    mechanisms: list[str] = array("string", most=MOST_OFFERED)


class SaslHandshakeRequest(
    Message,
    api_key=ApiKey.SASL_HANDSHAKE,
    versions=(0, 1),
    flexible_from=NEVER,
    response=SaslHandshakeResponse,
):
    """Names the SASL mechanism. 1: the tokens follow in SaslAuthenticate requests, not in bare frames (KIP-152)."""

    mechanism: str = string()


class SaslAuthenticateResponse(Message, api_key=ApiKey.SASL_AUTHENTICATE, versions=(0, 2), flexible_from=2):
    """The broker's token. 1: the lifetime of the session in milliseconds; 0 means unlimited (KIP-368)."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = byte_string()
    session_lifetime_ms: int = int64("1+", ignorable=True)


class SaslAuthenticateRequest(
    Message,
    api_key=ApiKey.SASL_AUTHENTICATE,
    versions=(0, 2),
    flexible_from=2,
    response=SaslAuthenticateResponse,
):
    """One token of the mechanism. 1: the broker limits the lifetime of the session (KIP-368)."""

    auth_bytes: bytes = byte_string()
