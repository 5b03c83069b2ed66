"""The authentication of a connection: its requests, the meaning of a rejection, and the time of its renewal."""

from __future__ import annotations

import asyncio

import pytest

from aioproducer.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    UnsupportedSaslMechanismError,
)
from aioproducer.network.handshake import BrokerVersions
from aioproducer.protocol.api import CLIENT_VERSIONS, ApiKey
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.protocol.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from aioproducer.security import authentication
from aioproducer.security.authentication import Authentication, authenticate
from aioproducer.security.login import Login
from aioproducer.security.sasl import OAuthToken
from aioproducer.testing.simulation.loop import simulate
from tests.conftest import MS
from tests.support.scripted_broker import make_config

PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_without_tls": True,
    "sasl_plain_username": "alice",
    "sasl_plain_password": "alice-secret",
}
SPOKEN = BrokerVersions(CLIENT_VERSIONS)


class Machine:
    """A mechanism with one token."""

    name, is_slow = "PLAIN", False

    def step(self, challenge: bytes | None) -> bytes | None:
        return b"token" if challenge is None else None

    def conceal(self, text: str) -> str:
        return text.replace("alice-secret", "...")


class Broker:
    """A broker that answers the requests of an authentication."""

    def __init__(
        self, handshake: int = 0, authenticate: int = 0, message: str | None = None, lifetime_ms: int = 0
    ) -> None:
        self.asked: list[tuple[ApiKey, int]] = []
        self._handshake = SaslHandshakeResponse(
            error_code=handshake, mechanisms=["SCRAM-SHA-256", "GSS\x07API"]
        )
        self._authenticate = SaslAuthenticateResponse(
            error_code=authenticate, error_message=message, session_lifetime_ms=lifetime_ms
        )

    async def __call__(self, request, version):
        self.asked.append((request.api_key, version))
        return self._handshake if request.api_key == ApiKey.SASL_HANDSHAKE else self._authenticate


async def take_step(challenge: bytes | None) -> bytes | None:
    return Machine().step(challenge)


def authentication_of(login: Login, timeout: float = 1.0, renew_at: float = 0.85) -> Authentication:
    return Authentication(login, "broker 1", host="broker", timeout=timeout, renew_at=renew_at)


# ------------------------------------------------------------------------------------------------ the requests


@pytest.mark.parametrize(
    ("lifetime_ms", "seconds"),
    [(0, None), (-1, None), (1500, 1.5), (2**63 - 1, authentication.LONGEST_SESSION)],
)
async def test_a_handshake_is_followed_by_each_token_and_the_last_answer_has_the_session_lifetime(
    lifetime_ms, seconds
):
    broker = Broker(lifetime_ms=lifetime_ms)

    assert await authenticate(broker, take_step, Machine(), SPOKEN, "broker 1") == seconds
    assert broker.asked == [
        (api, CLIENT_VERSIONS[api].max) for api in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    ]


@pytest.mark.parametrize(
    ("answers", "error", "told"),
    [
        (
            {"handshake": ErrorCode.UNSUPPORTED_SASL_MECHANISM},
            UnsupportedSaslMechanismError,
            r"broker 1: the broker does not accept PLAIN; it offers SCRAM-SHA-256, GSS\x07API; set sasl_mechanism "
            "accordingly",
        ),
        (
            {"handshake": ErrorCode.ILLEGAL_SASL_STATE},
            AuthenticationError,
            "set security_protocol to PLAINTEXT",
        ),
        ({"handshake": ErrorCode.UNKNOWN_SERVER_ERROR}, BrokerError, "UNKNOWN_SERVER_ERROR"),
        (
            {"authenticate": ErrorCode.SASL_AUTHENTICATION_FAILED, "message": "not alice-secret\n"},
            AuthenticationError,
            r"PLAIN credentials: not ...\x0a",
        ),
        (
            {"authenticate": ErrorCode.SASL_AUTHENTICATION_FAILED},
            AuthenticationError,
            "SASL_AUTHENTICATION_FAILED",
        ),
        (
            {"authenticate": ErrorCode.UNKNOWN_SERVER_ERROR, "message": "busy"},
            BrokerError,
            "UNKNOWN_SERVER_ERROR busy",
        ),
    ],
)
async def test_each_rejection_has_its_error_and_only_a_failure_of_the_broker_is_retriable(
    answers, error, told
):
    broker = Broker(**answers)
    with pytest.raises(error) as caught:
        await authenticate(broker, take_step, Machine(), SPOKEN, "broker 1")

    assert type(caught.value) is error
    assert told in str(caught.value)
    assert caught.value.retriable == (error is BrokerError)
    assert (ApiKey.SASL_AUTHENTICATE in dict(broker.asked)) == ("authenticate" in answers)


@pytest.mark.parametrize(
    ("code", "calls"), [(ErrorCode.SASL_AUTHENTICATION_FAILED, 2), (ErrorCode.UNKNOWN_SERVER_ERROR, 1)]
)
async def test_only_a_rejected_token_makes_the_next_authentication_fetch_another_one(code, calls):
    fetched = []
    login = Login(
        make_config(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=lambda: fetched.append(1) or OAuthToken("token", 3600.0),
        )
    )
    one = authentication_of(login)

    with pytest.raises((AuthenticationError, BrokerError)):
        await one.run(await one.credentials(), Broker(authenticate=code), SPOKEN)
    await one.credentials()

    assert not one.has_end
    assert len(fetched) == calls


# ------------------------------------------------------------------------------------------------- credentials


async def test_a_timeout_of_the_credentials_function_is_a_lost_connection_and_a_bug_in_it_is_not():
    async def hang() -> None:
        await asyncio.Event().wait()

    given = {**PLAIN, "sasl_plain_username": None, "sasl_plain_password": None}
    with pytest.raises(BrokerConnectionError, match="broker 1: no credentials within") as caught:
        await authentication_of(
            Login(make_config(**given, sasl_credentials=hang)), timeout=5 * MS
        ).credentials()
    assert caught.value.written is False

    class Broken(Login):
        async def mechanism(self, host: str):
            raise TypeError("alice-secret")

    with pytest.raises(AuthenticationError, match=r"^broker 1: no credentials: TypeError$"):
        await authentication_of(Broken(make_config(**PLAIN))).credentials()


def test_a_session_fails_if_there_are_no_credentials_before_its_end():
    """In virtual time, credentials are requested after 85 % of 10 s, after half of the remaining time, and after the
    end."""
    asked = []

    async def credentials() -> None:
        asked.append(asyncio.get_running_loop().time())
        raise LookupError

    async def main() -> None:
        given = {**PLAIN, "sasl_plain_username": None, "sasl_plain_password": None}
        one = authentication_of(Login(make_config(**given, sasl_credentials=credentials)))
        began = asyncio.get_running_loop().time()
        await one.run(Machine(), Broker(lifetime_ms=10_000), SPOKEN)
        with pytest.raises(AuthenticationError, match="raised LookupError"):
            await one.renewal()
        assert [when - began for when in asked] == pytest.approx([8.5, 9.55, 10.6], abs=0.1)

    simulate(main)


# ---------------------------------------------------------------------------------------------- the time of a renewal


async def renewal_after(lifetime_ms: int, monkeypatch, renew_at: float = 0.85) -> float | None:
    """Return the seconds until the next authentication, or None for never."""
    slept: list[float] = []
    login = Login(make_config(**PLAIN))
    one = Authentication(login, "broker", host="broker", timeout=1.0, renew_at=renew_at)
    await one.run(Machine(), Broker(lifetime_ms=lifetime_ms), SPOKEN)
    if not one.has_end:
        return None

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    stand_in = type("asyncio", (), {"__getattr__": lambda _, name: getattr(asyncio, name)})()
    stand_in.sleep = sleep
    monkeypatch.setattr(authentication, "asyncio", stand_in)
    await one.renewal()
    return slept[0]


@pytest.mark.parametrize(
    ("lifetime_ms", "seconds"),
    [
        (0, None),
        (-1, None),
        (-(2**63), None),
        (1, 1.05),  # Kafka rejects an earlier authentication, and the loop must not spin
        (1000, 1.05),
        (5000, 4.25),
        (3_600_000, 3060.0),
        (2**63 - 1, 365 * 86400 * 0.85),
    ],
)
async def test_a_session_is_renewed_before_its_end_but_not_immediately_and_within_a_year(
    monkeypatch, lifetime_ms, seconds
):
    assert await renewal_after(lifetime_ms, monkeypatch) == (
        seconds if seconds is None else pytest.approx(seconds, abs=0.1)
    )
