"""Token providers for OAUTHBEARER: an OIDC provider's token endpoint, and Amazon's MSK signer.

Each is an object to pass as `sasl_oauth_token_provider`. The libraries that it needs come with an extra of the
package, and are imported when the first token is requested."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, urlsplit

from aioproducer.concurrency.tasks import Threads
from aioproducer.errors import AuthenticationError, ConfigError
from aioproducer.security.sasl import OAuthToken
from aioproducer.types import Secret

__all__ = ["MskIamTokenProvider", "OidcTokenProvider"]

MAX_ANSWER = 256 * 1024
"""The maximum size of an answer, in bytes."""

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}

_LOCAL = ("localhost", "127.0.0.1", "::1")


class OidcTokenProvider:
    """Client credentials of OAuth 2 (RFC 6749, 4.4; KIP-768) from a token endpoint. Extra: aioproducer[oidc]."""

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str | Secret,
        *,
        scope: str | None = None,
        url_encode: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 10.0,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 10.0,
        attempts: int = 3,
    ) -> None:
        """Store the arguments; a token is requested later.

        Args:
            url: the token endpoint; https, except on this machine. Redirects are not followed, and no proxy
                or password is taken from the environment.
            client_id: the client's name.
            client_secret: its password.
            scope: the scope of the token; None leaves it to the endpoint.
            url_encode: encode the id and the secret before they are joined, which RFC 6749 requires and many servers
                do not.
            ssl_context: the trusted certificates; by default the system's store.
            connect_timeout: seconds.
            read_timeout: seconds.
            retry_backoff: seconds before the second attempt, doubled for each further one.
            retry_backoff_max: seconds; the longest pause.
            attempts: the number of attempts while the endpoint cannot be reached or fails.

        Raises:
            ConfigError: the URL is not https, or contains a password.
        """
        self._where = "without an endpoint"  # in case a traceback shows this incomplete object
        try:
            self._client_secret = (
                client_secret if isinstance(client_secret, Secret) else Secret(client_secret)
            )
        finally:
            del client_secret  # a traceback that shows locals must not show it
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)
        if not is_safe or not parts.hostname or parts.username or parts.password:
            raise ConfigError(
                "the token endpoint must be an https:// URL without user and password",
                setting="sasl_oauthbearer_token_endpoint_url",
                value=None,
            )
        self._url = url
        self._where = f"{parts.scheme}://{parts.hostname}"
        self._client_id = client_id
        self._scope = scope
        self._url_encode = url_encode
        self._ssl_context = ssl_context
        self._timeouts = connect_timeout, read_timeout
        self._backoff = retry_backoff, retry_backoff_max
        self._attempts = attempts
        self._reading = Threads()

    def __repr__(self) -> str:
        return f"<OidcTokenProvider {self._where}>"

    async def __call__(self) -> OAuthToken:
        """Return a new token.

        Raises:
            AuthenticationError: the endpoint rejects the request, or can't be reached. No part of its answer is
                repeated.
        """
        pause, longest = self._backoff
        for attempt in range(1, self._attempts + 1):
            told = await self._ask()
            if isinstance(told, OAuthToken):
                return told
            why, may_pass = told
            if not may_pass or attempt == self._attempts:
                break
            await asyncio.sleep(min(pause * 2.0 ** (attempt - 1), longest))
        raise AuthenticationError(f"OAUTHBEARER: {self._where} returned no token: {why}")

    async def _ask(self) -> OAuthToken | tuple[str, bool]:
        """Return a token, or the reason of a failure and whether a retry can help."""
        httpx = _httpx()
        context = self._ssl_context
        if context is None:
            context = self._ssl_context = await self._reading.call(ssl.create_default_context)
        connect, read = self._timeouts
        form = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope else {})}
        try:
            async with (
                httpx.AsyncClient(
                    verify=context,
                    trust_env=False,
                    follow_redirects=False,
                    timeout=httpx.Timeout(read, connect=connect),
                    auth=self._basic(httpx),
                ) as client,
                client.stream("POST", self._url, data=form, headers=_HEADERS) as response,
            ):
                if response.status_code != 200:
                    return f"HTTP status {response.status_code}", response.status_code >= 500
                if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
                    # A thousand bytes can expand to a gigabyte, and httpx decodes everything before it returns a byte.
                    return "a compressed answer, although the request says Accept-Encoding: identity", False
                body = b""
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > MAX_ANSWER:
                        return f"an answer of more than {MAX_ANSWER} bytes", False
        except httpx.HTTPError as error:
            return type(error).__name__, True
        return _token_of(body) or ("its answer is not JSON with an access_token", False)

    def _basic(self, httpx: Any) -> Any:
        if not self._url_encode:
            return httpx.BasicAuth(self._client_id, self._client_secret.reveal())
        return httpx.BasicAuth(quote_plus(self._client_id), quote_plus(self._client_secret.reveal()))


def _token_of(body: bytes) -> OAuthToken | None:
    try:
        answer = json.loads(body)
        lifetime = answer.get("expires_in")
        seconds = None if lifetime is None else max(float(lifetime), 0.0)
        return OAuthToken(
            answer["access_token"], seconds
        )  # a ConfigError, which is a ValueError, if it is null
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise ConfigError(
            "tokens from an endpoint need the library httpx: pip install 'aioproducer[oidc]'",
            setting="sasl_oauthbearer_token_endpoint_url",
            value=None,
        ) from None
    return httpx


class MskIamTokenProvider:
    """Amazon MSK with IAM: the token is a URL signed for kafka-cluster:Connect.

    Extra: aioproducer[msk]. Amazon's own signer creates it, in a thread, because it may have to fetch credentials
    first.
    """

    def __init__(
        self, region: str, *, credentials_provider: Any = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Store the arguments; tokens are signed later.

        Args:
            region: the region of the cluster, e.g. "eu-west-1".
            credentials_provider: a botocore CredentialProvider; by default botocore's usual sources.
            clock: seconds since 1970.

        Raises:
            ConfigError: the region is not valid.
        """
        if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-[0-9]+", region):
            raise ConfigError(
                f"{region!r} is not an AWS region such as eu-west-1", setting="region", value=region
            )
        self._region = region
        self._credentials_provider = credentials_provider
        self._clock = clock

    def __repr__(self) -> str:
        return f"<MskIamTokenProvider {self._region}>"

    def __call__(self) -> OAuthToken:
        """Return a token for the next 15 minutes. Blocks, and may raise whatever botocore raises.

        Raises:
            ConfigError: the library is missing.
        """
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer
        except ImportError:
            raise ConfigError(
                "MSK IAM needs Amazon's signer: pip install 'aioproducer[msk]'",
                setting="sasl_oauth_token_provider",
                value=None,
            ) from None
        if self._credentials_provider is None:
            return self._token(*signer.generate_auth_token(self._region))
        return self._token(
            *signer.generate_auth_token_from_credentials_provider(self._region, self._credentials_provider)
        )

    def _token(self, text: str, expires_ms: int) -> OAuthToken:
        return OAuthToken(Secret(text), max(expires_ms / 1000 - self._clock(), 0.0))
