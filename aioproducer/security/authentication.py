"""Authenticates to a broker with SASL, and re-authenticates before the session ends (KIP-152, KIP-368).

Each connection has an Authentication, to which it passes a function that sends requests. The state machines in `sasl`
create the SASL tokens; this module does not store them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from aioproducer.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    KafkaError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    escaped,
)
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aioproducer.protocol.outcomes import Action, decide
from aioproducer.protocol.schema import Message
from aioproducer.security.sasl import Mechanism

if TYPE_CHECKING:
    from aioproducer.network.handshake import BrokerVersions
    from aioproducer.security.login import Login


MAX_ROUNDS = 16
"""The maximum number of SASL tokens that one authentication may send: SCRAM needs 2, GSSAPI about 4."""

LONGEST_SESSION = 365 * 86400.0
"""The longest session in seconds. A longer session is cut to this length, so that the clock cannot overflow."""

SHORTEST_SESSION = 1.05
"""The minimum number of seconds between authentications on a connection. Kafka rejects an earlier re-authentication
(KafkaChannel)."""

Ask: TypeAlias = Callable[[Message, int], Awaitable[Message]]
"""Sends a request in the given version and returns the response."""
Step: TypeAlias = Callable[[bytes | None], Awaitable[bytes | None]]
"""Runs one step of a mechanism, in a thread if it is slow."""


class Authentication:
    """SASL authentication for one connection. If the broker does not limit the session, it never ends."""

    def __init__(self, login: Login, who: object, *, host: str, timeout: float, renew_at: float) -> None:
        """Store the arguments; credentials are requested later.

        Args:
            login: the source of the credentials.
            who: the connection, for error messages.
            host: the broker's name.
            timeout: the time limit in seconds for getting the credentials, and for each slow step of a mechanism.
            renew_at: the fraction of a session's lifetime after which to re-authenticate.
        """
        self._login = login
        self._log = login.log(__name__)
        self._who = who
        self._host = host
        self._timeout = timeout
        self._renew_at = renew_at
        self._loop = asyncio.get_running_loop()
        self._ends_at: float | None = None
        self._due_at = 0.0

    @property
    def has_end(self) -> bool:
        """True if the broker ends the session unless we re-authenticate."""
        return self._ends_at is not None

    async def credentials(self) -> Mechanism:
        """Return a new mechanism with credentials. The time limit for a step also applies to the user's function.

        Raises:
            AuthenticationError: there are no credentials.
            BrokerConnectionError: the credentials were not available in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._login.mechanism(self._host)
        except TimeoutError:
            pass
        except KafkaError:
            raise
        except Exception as error:
            # Any other exception raised by the user's objects makes start() fail immediately, but does not end a
            # session that is still valid.
            problem = f"{self._who}: no credentials: {type(error).__name__}"
            raise AuthenticationError(problem) from error
        raise BrokerConnectionError(f"{self._who}: no credentials within {self._timeout:g} s", written=False)

    async def run(self, mechanism: Mechanism, ask: Ask, versions: BrokerVersions) -> None:
        """Authenticate, and begin a session.

        Raises:
            AuthenticationError, UnsupportedSaslMechanismError, BrokerError: see `authenticate`.
            BrokerConnectionError: the connection broke, or a step of the mechanism took too long.
        """
        began = self._loop.time()  # the broker starts counting when it answers, which is later
        try:
            length = await authenticate(ask, partial(self._step, mechanism), mechanism, versions, self._who)
        except AuthenticationError:
            self._login.forget_token()
            raise
        self._ends_at = None if length is None else began + length
        self._due_at = began + max((length or 0.0) * self._renew_at, SHORTEST_SESSION)

    async def _step(self, mechanism: Mechanism, challenge: bytes | None) -> bytes | None:
        if not mechanism.is_slow:
            return mechanism.step(challenge)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._login.step(mechanism, challenge)
        except TimeoutError:
            pass
        message = f"{self._who}: {mechanism.name} took longer than {self._timeout:g} s"
        raise BrokerConnectionError(message, written=False)

    async def renewal(self) -> Mechanism:
        """Wait until it is time to re-authenticate, and return a mechanism with credentials.

        The credentials are requested before the first SASL message, so that records can be sent in the meantime. A
        failed request is retried until the session ends.

        Raises:
            KafkaError: the session has ended, and there are no credentials.
        """
        assert self._ends_at is not None
        when = self._due_at
        while True:
            await asyncio.sleep(when - self._loop.time())
            try:
                return await self.credentials()
            except KafkaError as error:
                left = self._ends_at - self._loop.time()
                if left <= 0:
                    raise
                self._log.warning("%s; the session with %s lasts another %.3g s", error, self._who, left)
                when = self._loop.time() + max(left / 2, SHORTEST_SESSION)


async def authenticate(
    ask: Ask, step: Step, mechanism: Mechanism, versions: BrokerVersions, who: object
) -> float | None:
    """Authenticate to the broker, and let the broker authenticate itself if the mechanism supports that (KIP-43,
    KIP-152).

    Args:
        ask: sends a request to the broker.
        step: runs a step of the mechanism.
        mechanism: a new mechanism, which has not run any step yet.
        versions: the versions that the broker supports.
        who: the connection, for error messages.

    Returns:
        The length of the session in seconds, counted from the last response (KIP-368); None if the session does not
        end.

    Raises:
        AuthenticationError: the broker rejects the authentication, or fails to authenticate itself.
        UnsupportedSaslMechanismError: the broker does not support this mechanism.
        BrokerError: the broker reports another error.
    """
    try:
        await _agree_on(ask, mechanism.name, versions, who)
        version = versions.of(ApiKey.SASL_AUTHENTICATE)
    except UnsupportedVersionError as error:
        raise AuthenticationError(
            f"{who}: the broker is too old, or this listener does not support SASL: {error.message}"
        ) from None
    lifetime_ms = 0
    challenge: bytes | None = None
    for _ in range(MAX_ROUNDS):
        # The repr of a message does not show its bytes, so no traceback shows them.
        request = await _next_token(step, challenge, who)
        if request is None:
            return _seconds(lifetime_ms)
        answer = await ask(request, version)
        assert isinstance(answer, SaslAuthenticateResponse)
        _raise_for(answer, mechanism, who)
        challenge, lifetime_ms = answer.auth_bytes, answer.session_lifetime_ms
    raise AuthenticationError(f"{who}: {mechanism.name} did not finish after {MAX_ROUNDS} tokens")


async def _agree_on(ask: Ask, name: str, versions: BrokerVersions, who: object) -> None:
    version = versions.of(ApiKey.SASL_HANDSHAKE)
    if version < 1:
        # Before KIP-152, tokens were sent without Kafka's frames.
        raise UnsupportedVersionError("the broker supports only version 0 of SaslHandshake")
    answer = await ask(SaslHandshakeRequest(mechanism=name), version)
    assert isinstance(answer, SaslHandshakeResponse)
    action = decide(ApiKey.SASL_HANDSHAKE, answer.error_code).action
    if action is Action.OTHER_MECHANISM:
        offered = tuple(escaped(one, 64) for one in answer.mechanisms[:32])
        raise UnsupportedSaslMechanismError(
            f"{who}: the broker does not accept {name}; it offers {', '.join(offered) or 'no mechanism at all'}; "
            "set sasl_mechanism accordingly",
            mechanism=name,
            offered=offered,
        )
    if action is Action.NO_SASL:
        raise AuthenticationError(
            f"{who}: this listener does not support SASL; set security_protocol to PLAINTEXT or SSL, or use "
            f"another port"
        )
    if action is not Action.SUCCEED:
        code = error_name(answer.error_code)
        raise BrokerError(
            f"{who}: the broker rejected SASL: {code}", code=answer.error_code, name=code, retriable=True
        )


async def _next_token(step: Step, challenge: bytes | None, who: object) -> SaslAuthenticateRequest | None:
    try:
        reply = await step(challenge)
    except AuthenticationError as error:
        raise AuthenticationError(f"{who}: {error.message}") from None
    return None if reply is None else SaslAuthenticateRequest(auth_bytes=reply)


def _raise_for(answer: SaslAuthenticateResponse, mechanism: Mechanism, who: object) -> None:
    action = decide(ApiKey.SASL_AUTHENTICATE, answer.error_code).action
    if action is Action.SUCCEED:
        return
    name, code = mechanism.name, error_name(answer.error_code)
    # The redacted text also replaces the text in the response, because tracebacks of the errors below refer to the
    # response.
    message = answer.error_message = escaped(mechanism.conceal(answer.error_message or ""))
    if action is Action.FAIL:
        raise AuthenticationError(f"{who}: the broker rejected the {name} credentials: {message or code}")
    raise BrokerError(
        f"{who}: {name} failed: {code} {message}".rstrip(), code=answer.error_code, name=code, retriable=True
    )


def _seconds(lifetime_ms: int) -> float | None:
    return min(lifetime_ms / 1000, LONGEST_SESSION) if lifetime_ms > 0 else None
