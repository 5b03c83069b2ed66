"""Provides the TLS context and the credentials for each connection of a producer.

The connections of a producer share one Login. The Login rereads certificates when their files change, and reuses
tokens for most of their lifetime. Only this module calls the user's functions."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import ssl
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from aioproducer.concurrency.tasks import Threads
from aioproducer.errors import AuthenticationError, ConfigError
from aioproducer.security.kerberos import Gssapi
from aioproducer.security.sasl import Mechanism, OAuthBearer, OAuthToken, Plain, Scram
from aioproducer.security.tls import TlsContext
from aioproducer.security.token_providers import OidcTokenProvider
from aioproducer.types import Secret, qualified_name

if TYPE_CHECKING:
    from aioproducer.config import ProducerConfig

COMPUTING = 4
"""The maximum number of slow steps that run at the same time: SCRAM key derivations and Kerberos requests."""


class Login:
    """The TLS context and the credentials of one producer. A Login belongs to the event loop that first uses it."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        random: Random | None = None,
        clock: Callable[[], float] = time.time,
        make_nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        """Store the arguments, without opening a file, calling a function or requesting a token.

        Args:
            config: the ssl_* and sasl_* settings.
            random: the source of jitter for token renewal times.
            clock: returns the seconds since 1970, to be compared with the expiry of a token.
            make_nonce: returns a nonce for SCRAM, which must be unpredictable.
        """
        self._config = config
        self.log = config.log
        """A function that returns a module's log."""
        self._random = random or Random()
        self._clock = clock
        self._make_nonce = make_nonce
        self.uses_tls = config.security_protocol in ("SSL", "SASL_SSL")
        self.uses_sasl = config.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        self._tls = TlsContext(config)
        self._provider = _provider(config) if config.sasl_mechanism == "OAUTHBEARER" else None
        self._reading, self._asking = Threads(), Threads()
        """Threads for reading files and for the user's functions; one call of each kind runs at a time."""
        self._computing = Threads(COMPUTING)
        self._fetching = asyncio.Lock()
        """Locked while a token is fetched: connections that need a token at the same time share one."""
        self._token: OAuthToken | None = None
        self._token_until = 0.0
        """The loop time until which the token is reused."""

    async def tls_context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Files are read in a thread.

        Raises:
            ConfigError: a file can't be read, or its content is invalid.
        """
        return await self._reading.call(self._tls.current)

    async def mechanism(self, host: str) -> Mechanism:
        """Return a mechanism with the current credentials, for one authentication to the broker `host`.

        Raises:
            AuthenticationError: the user's function failed, or its result can't be sent.
            ConfigError: a library is missing.
        """
        config = self._config
        name = config.sasl_mechanism
        if name == "OAUTHBEARER":
            token = await self._young_token()
            return OAuthBearer(token.value, {**dict(config.sasl_oauthbearer_extensions), **token.extensions})
        if name == "GSSAPI":
            return Gssapi(
                config.sasl_kerberos_service_name,
                config.sasl_kerberos_domain_name or host,
                principal=config.sasl_kerberos_principal,
                keytab=config.sasl_kerberos_keytab,
            )
        username, password = await self._credentials()
        if name == "PLAIN":
            return Plain(username, password)
        return Scram(
            str(name), username, password, nonce=self._make_nonce(), token_auth=config.sasl_scram_token_auth
        )

    async def step(self, mechanism: Mechanism, challenge: bytes | None) -> bytes | None:
        """Run a slow step of a mechanism in a thread. Exceptions from the step are passed on."""
        return await self._computing.call(mechanism.step, challenge)

    def forget_token(self) -> None:
        """Forget the token, because a broker rejected our credentials; the next authentication requests a new one."""
        self._token = None

    async def _ask(self, setting: str, function: Callable[[], Any]) -> Any:
        return await _call(self._asking, setting, function)

    # User and password

    async def _credentials(self) -> tuple[str, Secret]:
        ask = self._config.sasl_credentials
        if ask is None:
            username, password = self._config.sasl_plain_username, self._config.sasl_plain_password
            assert username is not None  # the settings were checked
            assert password is not None
            return username, password
        found = _as_pair(await self._ask("sasl_credentials", ask))
        if isinstance(found, str):
            raise AuthenticationError(
                f"sasl_credentials ({qualified_name(ask)}) returned {found}; it must return a pair of str, "
                "(user name, password)"
            )
        return found

    # Tokens

    async def _young_token(self) -> OAuthToken:
        loop = asyncio.get_running_loop()
        async with self._fetching:
            token = self._token
            if token is not None and loop.time() < self._token_until:
                return token
            assert self._provider is not None  # the settings were checked
            began = loop.time()
            found = _as_token(await self._ask("sasl_oauth_token_provider", self._provider), self._clock())
            if isinstance(found, str):
                raise AuthenticationError(
                    f"sasl_oauth_token_provider ({qualified_name(self._provider)}) returned {found}; it must return "
                    "a str, an OAuthToken, or a pair (str, seconds since 1970)"
                )
            token = found
            extensions = getattr(self._config.sasl_oauth_token_provider, "extensions", None)
            if callable(extensions) and not token.extensions:  # aiokafka's interface
                token = token.with_extensions(await self._ask("extensions", extensions))
            self._token, self._token_until = token, began + self._youth(token)
            return token

    def _youth(self, token: OAuthToken) -> float:
        """Return how long a token is reused, in seconds, as in Java's ExpiringCredentialRefreshingLogin.

        The result is 0 if the lifetime is unknown; each authentication then requests a new token.
        """
        life = token.lifetime
        if life is None:
            return 0.0
        config = self._config
        share = config.sasl_login_refresh_window_factor
        share += config.sasl_login_refresh_window_jitter * self._random.random()
        youth = life * share
        shortest, buffer = config.sasl_login_refresh_min_period, config.sasl_login_refresh_buffer
        if shortest + buffer < life:  # otherwise the lifetime is too short for both limits
            youth = max(min(youth, life - buffer), shortest)
        return max(youth, 0.0)


def _provider(config: ProducerConfig) -> Callable[[], Any]:
    """Return the function that provides tokens: the user's, or one that asks the token endpoint."""
    given = config.sasl_oauth_token_provider
    if given is None:
        assert config.sasl_oauthbearer_token_endpoint_url is not None  # the settings were checked
        return OidcTokenProvider(
            config.sasl_oauthbearer_token_endpoint_url,
            str(config.sasl_oauthbearer_client_credentials_client_id),
            config.sasl_oauthbearer_client_credentials_client_secret or Secret(""),
            scope=config.sasl_oauthbearer_scope,
            url_encode=config.sasl_oauthbearer_header_urlencode,
            connect_timeout=config.sasl_login_connect_timeout,
            read_timeout=config.sasl_login_read_timeout,
            retry_backoff=config.sasl_login_retry_backoff,
            retry_backoff_max=config.sasl_login_retry_backoff_max,
        )
    method = getattr(given, "token", None)
    found: Callable[[], Any] = method if callable(method) else given
    return found


def _as_pair(value: object) -> tuple[str, Secret] | str:
    """Return the user name and password, or a description of what was returned instead."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return _shown(value)
    username, password = value
    if isinstance(password, str):
        password = Secret(password)
    return (
        (username, password) if isinstance(username, str) and isinstance(password, Secret) else _shown(value)
    )


def _as_token(value: object, now: float) -> OAuthToken | str:
    """Return the token, or a description of what was returned instead."""
    returned = _shown(value)
    try:
        token = OAuthToken.of(value, now)
    finally:
        del value  # the traceback of an error may show this frame's local variables
    return returned if token is None else token


def _shown(returned: object) -> str:
    """Describe the result of a user's function by its types only, because the result may contain a password."""
    if not isinstance(returned, tuple | list):
        return type(returned).__name__
    types = ", ".join(type(part).__name__ for part in returned[:5])
    return f"{type(returned).__name__} ({types}{', ...' if len(returned) > 5 else ''})"


async def _call(threads: Threads, setting: str, function: Callable[[], Any]) -> Any:
    """Call the user's function: in the event loop if it is async, otherwise in a thread, as it may use the network.

    Raises:
        AuthenticationError: the function raised an exception, which is the cause.
    """
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async
    )
    try:
        if is_async:
            return await function()
        result = await threads.call(function)
        return await result if inspect.isawaitable(result) else result
    except (AuthenticationError, ConfigError):
        raise
    except Exception as error:
        # The text of the exception is not repeated, because it may contain the credentials.
        raise AuthenticationError(
            f"{setting} ({qualified_name(function)}) raised {type(error).__name__}"
        ) from error
