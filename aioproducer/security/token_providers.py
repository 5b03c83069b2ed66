"""Token providers for OAUTHBEARER: a token endpoint (OIDC), Amazon MSK, Google Cloud, Azure, and fixed tokens.

An instance is passed as `sasl_oauth_token_provider`. An extra of this package installs the libraries that a
provider needs; they are imported when the first token is requested."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import logging
import re
import ssl
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from operator import itemgetter
from typing import Any
from urllib.parse import quote_plus, urlsplit

from aioproducer.concurrency.tasks import Threads
from aioproducer.errors import AuthenticationError, ConfigError
from aioproducer.security.file_stamps import stamp
from aioproducer.security.sasl import OAuthToken
from aioproducer.types import Secret

__all__ = ["AzureTokenProvider", "GcpTokenProvider", "MskIamTokenProvider", "OidcTokenProvider"]

logger = logging.getLogger(__name__)

MAX_ANSWER = 256 * 1024
"""The maximum size of an endpoint's response, or of a token file, in bytes."""

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}

_LOCAL = ("localhost", "127.0.0.1", "::1")


class OidcTokenProvider:
    """Gets tokens from a token endpoint with OAuth 2 client credentials (RFC 6749, 4.4; KIP-768).

    Extra: aioproducer[oidc].
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str | Secret,
        *,
        scope: str | None = None,
        audience: str | None = None,
        url_encode: bool = False,
        authorities: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 10.0,
        retry_backoff: float = 0.1,
        retry_backoff_max: float = 10.0,
        attempts: int = 3,
    ) -> None:
        """Store the arguments; a token is requested later.

        Args:
            url: the URL of the token endpoint: https, or http on this machine. Redirects are not followed, and no proxy
                or password is taken from the environment.
            client_id: the client's name.
            client_secret: the client's password.
            scope: the scope of the token; None for the endpoint's default.
            audience: the audience of the token, for endpoints that require one.
            url_encode: encode the id and the secret before they are joined. RFC 6749 requires this encoding, but many
                servers do not expect it.
            authorities: the trusted certificates, as PEM text or as the path of a PEM file; by default, the system's.
                A file that has changed is read again before the next request.
            ssl_context: the context for TLS, used instead of `authorities`.
            connect_timeout: the time limit for connecting, in seconds.
            read_timeout: the time limit for each read, in seconds.
            retry_backoff: seconds before the second attempt; doubled before each further attempt.
            retry_backoff_max: the longest pause between attempts, in seconds.
            attempts: the maximum number of attempts if the endpoint cannot be reached or has an internal error.

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
                "the token endpoint must be an https:// URL without a user name or password",
                setting="sasl_oauthbearer_token_endpoint_url",
                value=None,
            )
        self._url = url
        self._where = f"{parts.scheme}://{parts.hostname}"
        self._client_id = client_id
        self._scope = scope
        self._audience = audience
        self._url_encode = url_encode
        self._ssl_context = ssl_context
        self._trust = _Trust(authorities)
        self._timeouts = connect_timeout, read_timeout
        self._backoff = retry_backoff, retry_backoff_max
        self._attempts = attempts
        self._reading = Threads()

    def __repr__(self) -> str:
        return f"<OidcTokenProvider {self._where}>"

    async def __call__(self) -> OAuthToken:
        """Return a new token.

        Raises:
            AuthenticationError: the endpoint rejects the request, or can't be reached. The error's text quotes no part
                of the endpoint's response.
        """
        pause, longest = self._backoff
        for attempt in range(1, self._attempts + 1):
            result = await self._ask()
            if isinstance(result, OAuthToken):
                return result
            why, may_pass = result
            if not may_pass or attempt == self._attempts:
                break
            await asyncio.sleep(min(pause * 2.0 ** (attempt - 1), longest))
        raise AuthenticationError(f"OAUTHBEARER: {self._where} returned no token: {why}")

    async def _ask(self) -> OAuthToken | tuple[str, bool]:
        """Return a token, or the reason for the failure and whether a retry can help."""
        httpx = _httpx()
        context = self._ssl_context or await self._reading.call(self._trust.current)
        connect, read = self._timeouts
        form = {"grant_type": "client_credentials"}
        form |= {"scope": self._scope} if self._scope else {}
        form |= {"audience": self._audience} if self._audience else {}
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
                    return "a compressed answer, though the request says Accept-Encoding: identity", False
                body = io.BytesIO()  # a traceback that shows locals must not show the token
                async for part in response.aiter_raw():
                    body.write(part)
                    del part
                    if body.tell() > MAX_ANSWER:
                        return f"an answer of more than {MAX_ANSWER} bytes", False
        except httpx.HTTPError as error:
            return type(error).__name__, True
        return _token_of(body.getvalue()) or ("its answer is not JSON with an access_token", False)

    def _basic(self, httpx: Any) -> Any:
        if not self._url_encode:
            return httpx.BasicAuth(self._client_id, self._client_secret.reveal())
        return httpx.BasicAuth(quote_plus(self._client_id), quote_plus(self._client_secret.reveal()))


class _Trust:
    """The TLS context for a token endpoint. Before each request, it rereads the trusted certificates if their file
    has changed."""

    def __init__(self, authorities: str | None) -> None:
        """Store the argument; a file is opened later."""
        self._authorities = authorities
        self._context: ssl.SSLContext | None = None
        self._seen: object = None

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection. Blocks while a file is read.

        Raises:
            ConfigError: the certificates can't be read, and there is no previous context to fall back on.
        """
        authorities = self._authorities
        seen = None if authorities is None or _is_pem(authorities) else stamp(authorities)
        if self._context is None or seen != self._seen:
            try:
                self._context = _trusting(authorities)
            except ConfigError as error:
                if self._context is None:
                    raise
                # The file may be incomplete because it is being written. The next request checks it again.
                logger.warning(
                    "certificates could not be reloaded, so the previous ones remain in use: %s", error
                )
            else:
                self._seen = seen
        return self._context


def _is_pem(authorities: str) -> bool:
    return "-----BEGIN " in authorities


def _trusting(authorities: str | None) -> ssl.SSLContext:
    if authorities is None:
        return ssl.create_default_context()
    try:
        if _is_pem(authorities):
            return ssl.create_default_context(cadata=authorities)
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        reason = type(error).__name__ if isinstance(error, ssl.SSLError) else error.strerror
    raise ConfigError(
        f"the trusted certificates for the token endpoint can't be read ({reason}); they must be PEM text, or the "
        "path of a file with PEM certificates",
        setting="sasl_oauth_token_provider",
        value=None,
    )


def _token_of(body: bytes) -> OAuthToken | None:
    try:
        answer = json.loads(body)
        lifetime = answer.get("expires_in")
        seconds = None if lifetime is None else max(float(lifetime), 0.0)
        return OAuthToken(answer["access_token"], seconds)  # null raises ConfigError, which is a ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise ConfigError(
            "tokens from an endpoint require the httpx package (pip install 'aioproducer[oidc]')",
            setting="sasl_oauthbearer_token_endpoint_url",
            value=None,
        ) from None
    return httpx


class MskIamTokenProvider:
    """Creates tokens for IAM in Amazon MSK: each is a URL signed for kafka-cluster:Connect. Extra: aioproducer[msk].

    Amazon's own signer creates the token. It runs in a thread, because it may have to fetch credentials first.
    """

    def __init__(
        self,
        region: str,
        *,
        profile: str | None = None,
        role_arn: str | None = None,
        role_session_name: str | None = None,
        role_external_id: str | None = None,
        sts_region: str | None = None,
        credentials_provider: Any = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Store the arguments; tokens are signed later.

        Args:
            region: the region of the cluster, e.g. "eu-west-1".
            profile: a profile in AWS's configuration files; by default, botocore's usual sources of credentials.
            role_arn: a role to assume with these credentials.
            role_session_name: the name of the session in which the role is assumed.
            role_external_id: the external id that the role may require.
            sts_region: the region of the security token service for the role; by default, the region of the cluster.
            credentials_provider: a botocore CredentialProvider, used instead of the profile and the role.
            clock: returns the seconds since 1970.

        Raises:
            ConfigError: a region is not valid.
        """
        for name in (region, sts_region or region):
            if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-[0-9]+", name):
                raise ConfigError(
                    f"{name!r} is not an AWS region such as eu-west-1", setting="region", value=name
                )
        self._region = region
        self._profile = profile
        self._role = role_arn, role_session_name or "aioproducer", role_external_id
        self._sts_region = sts_region or region
        self._credentials_provider = credentials_provider
        self._clock = clock

    def __repr__(self) -> str:
        role, *_ = self._role
        facts = [self._region, self._profile and f"profile {self._profile}", role and f"role {role}"]
        return f"<MskIamTokenProvider {', '.join(filter(None, facts))}>"

    def __call__(self) -> OAuthToken:
        """Return a token that is valid for 15 minutes. Blocks, and may raise whatever botocore raises.

        Raises:
            ConfigError: the library is missing.
        """
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as signer
        except ImportError:
            raise ConfigError(
                "MSK IAM requires Amazon's signer (pip install 'aioproducer[msk]')",
                setting="sasl_oauth_token_provider",
                value=None,
            ) from None
        provider = self._credentials_provider
        if provider is None and self._role[0] is not None:
            provider = self._assumed_role()
        if provider is not None:
            return self._token(*signer.generate_auth_token_from_credentials_provider(self._region, provider))
        if self._profile is not None:
            return self._token(*signer.generate_auth_token_from_profile(self._region, self._profile))
        return self._token(*signer.generate_auth_token(self._region))

    def _assumed_role(self) -> Any:
        """Return a provider of the role's credentials. Amazon's signer accepts no STS region and no external id."""
        from botocore.credentials import CredentialProvider, Credentials
        from botocore.session import Session

        arn, session_name, external_id = self._role
        client = Session(profile=self._profile).create_client("sts", region_name=self._sts_region)
        external = {} if external_id is None else {"ExternalId": external_id}
        # No local variable contains the response, because a traceback may show it.
        key_id, key, token = map(
            Secret,
            itemgetter("AccessKeyId", "SecretAccessKey", "SessionToken")(
                client.assume_role(RoleArn=arn, RoleSessionName=session_name, **external)["Credentials"]
            ),
        )

        class Assumed(CredentialProvider):  # type: ignore[misc]  # botocore has no types
            def load(self) -> Any:
                return Credentials(key_id.reveal(), key.reveal(), token.reveal())

        return Assumed()

    def _token(self, text: str, expires_ms: int) -> OAuthToken:
        try:
            token = Secret(text)
        finally:
            del text  # a traceback that shows locals must not show it
        return OAuthToken(token, max(expires_ms / 1000 - self._clock(), 0.0))


class GcpTokenProvider:
    """Gets tokens for Google Cloud Managed Service for Apache Kafka. Extra: aioproducer[gcp].

    Each token has the form of a JSON web token. It contains an access token, obtained with the application default
    credentials, and the name of their account. google-auth gets the access token, in a thread.
    """

    SCOPE = "https://www.googleapis.com/auth/cloud-platform"

    def __init__(self, *, account: str | None = None, credentials: Any = None) -> None:
        """Store the arguments; credentials are looked up later.

        Args:
            account: the e-mail address of the service account; by default, the account of the credentials.
            credentials: google-auth's Credentials; by default, `google.auth.default()`.
        """
        self._account = account
        self._credentials = credentials

    def __repr__(self) -> str:
        return f"<GcpTokenProvider {self._account or 'default credentials'}>"

    def __call__(self) -> OAuthToken:
        """Return a new token. Blocks, and may raise whatever google-auth raises.

        Raises:
            AuthenticationError: the credentials have no account.
            ConfigError: the library is missing.
        """
        try:
            import google.auth
            from google.auth.transport.requests import Request
        except ImportError:
            raise ConfigError(
                "Google Cloud requires the google-auth package (pip install 'aioproducer[gcp]')",
                setting="sasl_oauth_token_provider",
                value=None,
            ) from None
        credentials: Any = self._credentials
        if credentials is None:
            credentials, _ = google.auth.default(scopes=[self.SCOPE])
            self._credentials = credentials
        credentials.refresh(Request())
        # google-auth returns a time without a zone, in UTC.
        expires = credentials.expiry.replace(tzinfo=datetime.UTC).timestamp()
        now = time.time()
        claims = {
            "exp": int(expires),
            "iat": int(now),
            "scope": "kafka",
            "sub": self._account_of(credentials),
        }
        header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
        # No local variable contains the token, because a traceback may show it.
        parts = map(Secret, (json.dumps(header), json.dumps(claims), credentials.token))
        return OAuthToken(Secret(".".join(map(_in_base64, parts))), max(expires - now, 0.0))

    def _account_of(self, credentials: Any) -> str:
        found = (
            getattr(credentials, name, None) for name in ("service_account_email", "signer_email", "account")
        )
        # On a virtual machine, the account is called "default" until the metadata server has returned its name.
        account = self._account or next((name for name in found if name and name != "default"), None)
        if account is None:
            raise AuthenticationError(
                f"OAUTHBEARER: google-auth's {type(credentials).__name__} has no account; pass "
                "sasl_oauth_token_provider=GcpTokenProvider(account='name@project.iam.gserviceaccount.com')"
            )
        return str(account)


def _in_base64(part: Secret) -> str:
    # Without an error handler, the error for an unpaired surrogate would contain the text.
    return urlsafe_b64encode(part.reveal().encode("utf-8", "surrogatepass")).decode().rstrip("=")


class AzureTokenProvider:
    """Gets tokens from Microsoft Entra ID, which Azure Event Hubs and other brokers accept. Extra: aioproducer[azure].

    azure-identity gets the token, in a thread.
    """

    def __init__(self, scope: str, *, credential: Any = None) -> None:
        """Store the arguments; credentials are looked up later.

        Args:
            scope: the scope of the token; for Event Hubs "https://NAMESPACE.servicebus.windows.net/.default".
            credential: an object with azure-identity's `get_token(scope)`; by default `DefaultAzureCredential()`, which
                reads AZURE_CLIENT_ID and other variables, or uses the managed identity.
        """
        self._scope = scope
        self._credential = credential

    def __repr__(self) -> str:
        return f"<AzureTokenProvider {self._scope}>"

    def __call__(self) -> OAuthToken:
        """Return a token. Blocks, and may raise whatever azure-identity raises.

        Raises:
            ConfigError: the library is missing.
        """
        if self._credential is None:
            try:
                from azure.identity import DefaultAzureCredential
            except ImportError:
                raise ConfigError(
                    "Azure requires the azure-identity package (pip install 'aioproducer[azure]')",
                    setting="sasl_oauth_token_provider",
                    value=None,
                ) from None
            self._credential = DefaultAzureCredential()
        token = self._credential.get_token(self._scope)
        try:
            value, expires = Secret(token.token), token.expires_on
        finally:
            del token  # a traceback that shows locals must not show it
        return OAuthToken(value, max(expires - time.time(), 0.0))


class FixedTokenProvider:
    """Returns a token that was given as a setting. If it is a JSON web token, its lifetime is read from it."""

    def __init__(self, token: Secret) -> None:
        self._token = token

    def __repr__(self) -> str:
        return "<FixedTokenProvider>"

    def __call__(self) -> str:
        """Return the token."""
        return self._token.reveal()


class FileTokenProvider:
    """Reads the token from a file that another program replaces, as Kubernetes does for a service account."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"<FileTokenProvider {self._path}>"

    def __call__(self) -> str:
        """Return the token in the file. Blocks."""
        with open(self._path, encoding="utf-8") as file:
            return file.read(MAX_ANSWER).strip()
