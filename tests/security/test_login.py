"""The login of a producer: the reuse of tokens, the requests for them, and the values that the user's callables
may return."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aioproducer import Producer
from aioproducer.config import ProducerConfig
from aioproducer.errors import AuthenticationError
from aioproducer.security.login import Login
from aioproducer.security.sasl import OAuthToken
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.testing.simulation.loop import simulate
from tests.conftest import MS
from tests.security.test_mechanisms import cluster_of, jws
from tests.support.producing import QUICK
from tests.support.scripted_broker import LONG, make_config, make_connection

PLAIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_without_tls": True}


def login_of(provider, **settings: object) -> Login:
    config: ProducerConfig = make_config(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
        sasl_login_refresh_window_jitter=0.0,
        **settings,
    )
    return Login(config, clock=lambda: 1000.0)


# ------------------------------------------------------------------------------------------------- credentials


@pytest.mark.parametrize(
    ("protocol", "uses_tls", "uses_sasl"),
    [
        ("PLAINTEXT", False, False),
        ("SSL", True, False),
        ("SASL_PLAINTEXT", False, True),
        ("SASL_SSL", True, True),
    ],
)
def test_a_protocol_uses_tls_or_sasl_or_both_or_neither(protocol, uses_tls, uses_sasl):
    credentials = (
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "a", "sasl_plain_password": "s"}
        if uses_sasl
        else {}
    )
    login = Login(make_config(security_protocol=protocol, **credentials))

    assert (login.uses_tls, login.uses_sasl) == (uses_tls, uses_sasl)


async def test_credentials_are_requested_each_time_from_async_functions_on_the_loop_and_others_in_a_thread():
    asked_in = []

    def in_a_thread() -> list[str]:
        asked_in.append(threading.current_thread())
        return ["alice", f"secret {len(asked_in)}"]

    async def on_the_loop() -> list[str]:
        return in_a_thread()

    for function, is_thread in ((in_a_thread, True), (on_the_loop, False)):
        asked_in.clear()
        login = Login(make_config(**PLAIN, sasl_credentials=function))
        tokens = [(await login.mechanism("broker")).step(None) for _ in range(2)]

        assert tokens == [b"\0alice\0secret 1", b"\0alice\0secret 2"]
        assert [thread is not threading.main_thread() for thread in asked_in] == [is_thread] * 2


async def test_an_error_of_the_users_function_is_named_without_its_text_and_our_errors_are_raised():
    def fails() -> None:
        raise LookupError("no entry alice-secret")

    def refuses() -> None:
        raise AuthenticationError("the vault is sealed")

    with pytest.raises(
        AuthenticationError, match=r"sasl_credentials \(.*fails\) raised LookupError$"
    ) as caught:
        await Login(make_config(**PLAIN, sasl_credentials=fails)).mechanism("broker")
    assert type(caught.value.__cause__) is LookupError
    with pytest.raises(AuthenticationError, match=r"^the vault is sealed$"):
        await Login(make_config(**PLAIN, sasl_credentials=refuses)).mechanism("broker")


async def test_extensions_of_a_token_come_before_those_of_the_settings():
    given = {"logicalCluster": "of the settings", "poolId": "of the settings"}
    login = login_of(
        lambda: OAuthToken("token", 60.0, {"poolId": "of the token"}), sasl_oauthbearer_extensions=given
    )

    first = (await login.mechanism("broker")).step(None)

    assert b"logicalCluster=of the settings\x01" in first
    assert b"poolId=of the token\x01" in first


# ------------------------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize(
    ("lifetime", "young_for"),
    [
        (3600.0, 2880.0),  # 80 %
        (1200.0, 900.0),  # or until 300 s before the end
        (400.0, 100.0),
        (350.0, 280.0),  # too short-lived for the 300 + 60 s, so 80 %
        (10.0, 8.0),
        (None, 0.0),
        (0.0, 0.0),
    ],
)
async def test_a_token_is_used_again_for_80_percent_of_its_life(lifetime, young_for):
    login = login_of(lambda: OAuthToken("token", lifetime))
    began = asyncio.get_running_loop().time()
    await login.mechanism("broker")

    assert login._token_until - began == pytest.approx(young_for, abs=0.5)


@pytest.mark.promise(
    "Security",
    "tokens are fetched once for all connections, used for 80 % of their life, and dropped when rejected",
)
@pytest.mark.parametrize("lifetime", [3600.0, 350.0, 10.0])
def test_a_provider_is_called_again_after_80_percent_of_a_tokens_life_and_not_before(lifetime):
    """In virtual time: each new connection authenticates, and only the last of them needs a new token."""
    asked = []
    security = Security(mechanisms=["OAUTHBEARER"])

    async def provider() -> OAuthToken:
        asked.append(asyncio.get_running_loop().time())
        return OAuthToken(jws(), lifetime)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        settings = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": provider,
            "sasl_login_refresh_window_jitter": 0.0,
        }
        async with (
            EmbeddedCluster(topics={"t": 1}, security=security) as cluster,
            Producer(cluster.bootstrap_servers, **{**QUICK, **settings}) as producer,
        ):

            async def connect_anew(share: float) -> int:
                await asyncio.sleep(asked[0] + share * lifetime - loop.time())
                await cluster.close_connections(0)
                before = len(security.authentications)
                await producer.send_and_wait("t", b"x")
                assert len(security.authentications) > before
                return len(asked)

            assert [await connect_anew(share) for share in (0.4, 0.79)] == [1, 1]
            assert await connect_anew(0.81) == 2

    simulate(main)


@pytest.mark.promise(
    "Security",
    "tokens are fetched once for all connections, used for 80 % of their life, and dropped when rejected",
)
async def test_connections_that_need_a_token_at_the_same_time_fetch_one():
    calls = []

    async def provider() -> OAuthToken:
        calls.append(1)
        await asyncio.sleep(5 * MS)
        return OAuthToken("token", 3600.0)

    login = login_of(provider)
    await asyncio.gather(*(login.mechanism("broker") for _ in range(20)))

    assert len(calls) == 1


async def test_a_token_that_a_broker_refused_is_not_used_again():
    calls = []
    login = login_of(lambda: calls.append(1) or OAuthToken("token", 3600.0))
    await login.mechanism("broker")
    login.forget_token()
    await login.mechanism("broker")

    assert len(calls) == 2


async def test_if_a_fetch_is_cancelled_the_next_connection_fetches_the_token():
    calls = []

    async def provider() -> OAuthToken:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return OAuthToken("token", 3600.0)

    login = login_of(provider)
    first = asyncio.create_task(login.mechanism("broker"))
    await asyncio.sleep(1 * MS)
    second = asyncio.create_task(login.mechanism("broker"))
    first.cancel()

    assert (await asyncio.wait_for(second, LONG)).name == "OAUTHBEARER"
    assert len(calls) == 2


@pytest.mark.promise(
    "Security",
    "tokens are fetched once for all connections, used for 80 % of their life, and dropped when rejected",
)
async def test_a_token_that_a_broker_refuses_is_not_offered_again():
    calls = []

    def provider() -> OAuthToken:
        calls.append(1)
        return OAuthToken(jws(life=3600.0 if len(calls) > 2 else -60.0), 3600.0)

    async with cluster_of(Security(mechanisms=["OAUTHBEARER"])) as cluster:
        connection_settings = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": provider,
        }
        login = Login(make_config(**connection_settings))
        for _ in range(2):
            with pytest.raises(AuthenticationError, match="the token is invalid"):
                await make_connection(cluster.broker(0).port, login=login, **connection_settings).connect()
        connection = make_connection(cluster.broker(0).port, login=login, **connection_settings)
        await connection.connect()
        await connection.close()

    assert len(calls) == 3
