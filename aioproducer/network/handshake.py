"""Negotiates API versions, the first step on every new connection.

This module does no I/O itself: the connection passes in a function that sends a request, and stores the result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from aioproducer.errors import BrokerError
from aioproducer.protocol.api import CLIENT_VERSIONS, ApiKey, VersionRange, negotiate
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from aioproducer.protocol.outcomes import Action, decide


class BrokerVersions:
    """The API versions that one broker supports, and the finalized features of its cluster (KIP-584)."""

    def __init__(
        self,
        ranges: Mapping[int, VersionRange],
        features: Mapping[str, int] | None = None,
        features_epoch: int = -1,
    ) -> None:
        self.ranges = ranges
        self.features = dict(features or {})
        """The level of each finalized feature, by name, e.g. transaction.version: 2."""
        self.features_epoch = features_epoch
        self.of: Callable[..., int] = cache(lambda api_key, ceiling=None: negotiate(api_key, ranges, ceiling))
        """A function that takes an API and optionally a ceiling, and returns the version to use for its requests.

        Raises UnsupportedVersionError if client and broker have no version in common."""

    @property
    def described(self) -> str:
        """The broker's version ranges for the APIs that this client uses, as text."""
        used = ((api, self.ranges.get(api)) for api in CLIENT_VERSIONS)
        return "; ".join(f"{api.name} {known.min}-{known.max}" for api, known in used if known is not None)


FIRST_WITH_FEATURES = 3
"""The first version of ApiVersions whose response contains the cluster's finalized features (KIP-584)."""


async def learn_versions(
    ask: Callable[[ApiVersionsRequest, int], Awaitable[ApiVersionsResponse]],
    who: object,
    asked: int = CLIENT_VERSIONS[ApiKey.API_VERSIONS].max,
) -> BrokerVersions:
    """Ask the broker for its API versions, with at most two requests (KIP-511).

    The first request has version `asked`. If the broker does not support it, the second uses the version that the
    broker names.

    Raises:
        BrokerError: the broker does not report its versions.
    """
    request = ApiVersionsRequest(client_software_name="aioproducer", client_software_version=_own_version())
    answer = await ask(request, asked)
    if decide(ApiKey.API_VERSIONS, answer.error_code).action is Action.DOWNGRADE:
        # The second version is always lower than the first one, and there is never a third request, so the
        # negotiation can't continue forever.
        answer = await ask(request, max(0, min(_newest(answer), asked - 1)))
    elif asked < FIRST_WITH_FEATURES <= _newest(answer):
        # The first request had a low version, because the broker closed earlier connections when it received a
        # higher one. Without a second request, the features would stay unknown.
        answer = await ask(request, FIRST_WITH_FEATURES)
    if decide(ApiKey.API_VERSIONS, answer.error_code).action is not Action.SUCCEED:
        name = error_name(answer.error_code)
        raise BrokerError(
            f"{who}: the broker did not report its API versions: {name}",
            code=answer.error_code,
            name=name,
            retriable=True,
        )
    return BrokerVersions(
        {
            api.api_key: VersionRange(api.min_version, api.max_version)
            for api in answer.api_keys
            if 0 <= api.min_version <= api.max_version
        },
        {feature.name: feature.max_version_level for feature in answer.finalized_features},
        answer.finalized_features_epoch,
    )


def _newest(answer: ApiVersionsResponse) -> int:
    """Return the newest version of ApiVersions that the broker supports, according to its response."""
    return next((api.max_version for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)


@cache
def _own_version() -> str:
    """Return our version, with only the characters that brokers accept (KIP-511): letters, digits, dots, hyphens."""
    try:
        text = version("aioproducer")
    except PackageNotFoundError:
        return "unknown"
    return "".join(sign if sign.isalnum() else "." for sign in text).strip(".")
