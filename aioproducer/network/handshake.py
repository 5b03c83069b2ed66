"""What is agreed upon before a connection carries anything else: the versions of both sides.

Pure steps: the connection hands in how to ask, and keeps what comes out."""

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
    """The versions that one broker speaks, and the features that its cluster has finalized (KIP-584)."""

    def __init__(
        self,
        ranges: Mapping[int, VersionRange],
        features: Mapping[str, int] | None = None,
        features_epoch: int = -1,
    ) -> None:
        self.ranges = ranges
        self.features = dict(features or {})
        """Finalized features by name, with their level, e.g. transaction.version: 2."""
        self.features_epoch = features_epoch
        self._chosen: dict[tuple[ApiKey, int | None], int] = {}

    def of(self, api_key: ApiKey, ceiling: int | None = None) -> int:
        """The version in which requests of this API are sent, at most `ceiling`.

        Raises:
            UnsupportedVersionError: no version is spoken by both sides.
        """
        chosen = self._chosen.get((api_key, ceiling))
        if chosen is None:
            chosen = self._chosen[api_key, ceiling] = negotiate(api_key, self.ranges, ceiling)
        return chosen


FIRST_WITH_FEATURES = 3
"""The first version of ApiVersions that tells the cluster's finalized features (KIP-584)."""


async def learn_versions(
    ask: Callable[[ApiVersionsRequest, int], Awaitable[ApiVersionsResponse]],
    who: object,
    asked: int = CLIENT_VERSIONS[ApiKey.API_VERSIONS].max,
) -> BrokerVersions:
    """Ask which versions the broker speaks, at most twice: once too high, then as it says (KIP-511).

    `asked` is the version of the first question.

    Raises:
        BrokerError: the broker refuses to say.
    """
    request = ApiVersionsRequest(client_software_name="aioproducer", client_software_version=_own_version())
    answer = await ask(request, asked)
    if decide(ApiKey.API_VERSIONS, answer.error_code).action is Action.DOWNGRADE:
        # Strictly lower, whatever the hint, and not a third time: a broker can't send us round in circles.
        answer = await ask(request, max(0, min(_newest(answer), asked - 1)))
    elif asked < FIRST_WITH_FEATURES <= _newest(answer):
        # Asked low because connections were closed before: features would stay unknown.
        answer = await ask(request, FIRST_WITH_FEATURES)
    if decide(ApiKey.API_VERSIONS, answer.error_code).action is not Action.SUCCEED:
        name = error_name(answer.error_code)
        raise BrokerError(
            f"{who}: the broker refuses to say which versions it speaks: {name}",
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
    """The newest version of ApiVersions that the broker says it knows."""
    return next((api.max_version for api in answer.api_keys if api.api_key == ApiKey.API_VERSIONS), 0)


@cache
def _own_version() -> str:
    """Ours as brokers accept it: letters, digits, dots and hyphens (KIP-511)."""
    try:
        text = version("aioproducer")
    except PackageNotFoundError:
        return "unknown"
    return "".join(sign if sign.isalnum() else "." for sign in text).strip(".")
