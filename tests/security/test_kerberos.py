"""GSSAPI with a Kerberos server for the tests: against the embedded broker, and step by step against forged answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import pytest

from aioproducer import Producer
from aioproducer.errors import AuthenticationError, ConfigError
from aioproducer.security.kerberos import Gssapi
from aioproducer.testing import EmbeddedCluster, Security
from tests.security.test_mechanisms import refusal
from tests.support import docs_pages
from tests.support.kdc import REALM, Kdc, running
from tests.support.producing import QUICK
from tests.support.scripted_broker import LONG


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running(tmp_path_factory.mktemp("kdc")) as kdc:
        yield kdc


@pytest.fixture(scope="module")
def keytabs(kdc: Kdc) -> dict[str, str]:
    return {name: kdc.keytab(name) for name in ("kafka/localhost", "alice", "orders", "other/localhost")}


@pytest.fixture(autouse=True)
def in_the_realm(kdc: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name, value in kdc.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")


def settings_of(keytabs: dict[str, str], **changed: object) -> dict[str, object]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_principal": "alice",
        "sasl_kerberos_keytab": keytabs["alice"],
        **changed,
    }


@pytest.mark.parametrize("domain_name", [None, "localhost"])
async def test_a_keytab_is_accepted(keytabs, domain_name):
    security = Security(mechanisms=["GSSAPI"], keytab=keytabs["kafka/localhost"])
    async with EmbeddedCluster(security=security, topics={"t": 1}) as cluster:
        port = cluster.broker(0).port
        servers = f"127.0.0.1:{port}" if domain_name else f"localhost:{port}"
        cluster.broker(0).host = "127.0.0.1" if domain_name else "localhost"
        settings = {**QUICK, **settings_of(keytabs, sasl_kerberos_domain_name=domain_name)}
        async with Producer(servers, **settings) as producer:
            await asyncio.wait_for(producer.send_and_wait("t", b"x"), LONG)

    assert set(security.authentications) == {("User:alice", "GSSAPI")}


async def test_tickets_fetched_by_kinit_are_accepted(kdc, keytabs):
    kdc.run("kinit", "-k", "-t", keytabs["alice"], "alice")
    security = Security(mechanisms=["GSSAPI"], keytab=keytabs["kafka/localhost"])
    async with EmbeddedCluster(security=security, topics={"t": 1}) as cluster:
        cluster.broker(0).host = "localhost"
        settings = settings_of(keytabs, sasl_kerberos_principal=None, sasl_kerberos_keytab=None)
        async with Producer(f"localhost:{cluster.broker(0).port}", **{**QUICK, **settings}) as producer:
            await asyncio.wait_for(producer.send_and_wait("t", b"x"), LONG)

    assert ("User:alice", "GSSAPI") in security.authentications


async def test_the_code_of_the_guide_works(keytabs, tmp_path, monkeypatch):
    (code,) = (block.code for block in docs_pages.blocks_of(docs_pages.ROOT / "docs" / "sasl-gssapi.md"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.keytab").symlink_to(keytabs["orders"])
    security = Security(mechanisms=["GSSAPI"], keytab=keytabs["kafka/localhost"])
    async with EmbeddedCluster(security=security) as cluster:
        broker = cluster.broker(0)
        broker.host = "localhost"
        names: dict[str, Producer] = {}
        exec(code.replace("localhost:9096", f"localhost:{broker.port}"), names)
        async with names["producer"] as producer:
            await asyncio.wait_for(producer.send_and_wait("orders", b"7"), LONG)

    assert set(security.authentications) == {("User:orders", "GSSAPI")}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"sasl_kerberos_principal": None, "sasl_kerberos_keytab": None}, "GSSAPI: .*(credentials|cache)"),
        ({"sasl_kerberos_keytab": "/nowhere/alice.keytab"}, "GSSAPI: .*(keytab|credentials)"),
        ({"sasl_kerberos_principal": "nobody"}, "GSSAPI: .*(nobody|client|credentials)"),
        ({"sasl_kerberos_service_name": "nothing"}, "GSSAPI: .*(nothing/localhost|not found)"),
    ],
)
async def test_without_a_ticket_start_fails_with_the_message_of_kerberos(keytabs, changed, told):
    security = Security(mechanisms=["GSSAPI"], keytab=keytabs["kafka/localhost"])
    async with EmbeddedCluster(security=security) as cluster:
        error = await refusal(f"localhost:{cluster.broker(0).port}", **settings_of(keytabs, **changed))

    assert type(error) is AuthenticationError
    with pytest.raises(AuthenticationError, match=told):
        raise error


async def test_a_broker_with_another_key_is_refused(keytabs):
    security = Security(mechanisms=["GSSAPI"], keytab=keytabs["other/localhost"])
    async with EmbeddedCluster(security=security) as cluster:
        error = await refusal(f"localhost:{cluster.broker(0).port}", **settings_of(keytabs))

    assert type(error) is AuthenticationError
    assert "GSSAPI: " in str(error)


def exchanged(keytabs: dict[str, str]):
    """Return a machine and a server after they have authenticated each other."""
    import gssapi

    machine = Gssapi("kafka", "localhost", principal="alice", keytab=keytabs["alice"])
    server = gssapi.SecurityContext(
        usage="accept",
        creds=gssapi.Credentials(usage="accept", store={"keytab": keytabs["kafka/localhost"]}),
    )
    assert machine.is_slow
    token = machine.step(None)
    while not server.complete:
        token = machine.step(server.step(token))
    assert token == b""
    assert str(server.initiator_name) == f"alice@{REALM}"
    return machine, server


def test_no_security_layer_is_chosen_and_the_last_answer_is_empty(keytabs):
    machine, server = exchanged(keytabs)
    reply = machine.step(server.wrap(b"\x07\x00\xff\xff", False).message)

    assert server.unwrap(reply).message == b"\x01\x00\x00\x00"
    assert machine.step(b"") is None
    with pytest.raises(AuthenticationError, match="after the end"):
        machine.step(b"")


@pytest.mark.parametrize("offer", [b"\x06\x00\xff\xff", b"", b"\x01", b"\x01\x00\x00\x00\x00"])
def test_a_required_layer_or_an_invalid_message_is_rejected(keytabs, offer):
    machine, server = exchanged(keytabs)

    with pytest.raises(AuthenticationError, match="requires a security layer"):
        machine.step(server.wrap(offer, False).message)


@pytest.mark.parametrize("challenge", [b"", b"\x00", b"forged" * 20, bytes(2000)])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_forged_challenge_is_an_authentication_error_at_each_step(keytabs, challenge, stage):
    if stage:
        machine, server = exchanged(keytabs)
    else:
        machine = Gssapi("kafka", "localhost", principal="alice", keytab=keytabs["alice"])
        machine.step(None)
    if stage == 2:
        machine.step(server.wrap(b"\x01\x00\x00\x00", False).message)
        if not challenge:
            return
    with pytest.raises(AuthenticationError, match="GSSAPI"):
        machine.step(challenge)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[gssapi\]'"):
        Gssapi("kafka", "localhost")
