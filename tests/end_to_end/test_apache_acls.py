"""A real Kafka with ACLs: the errors of a producer whose access to a topic or the cluster is denied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from aioproducer import Outcome, Producer
from aioproducer.errors import KafkaError, TopicAuthorizationError, TransactionReinitError
from aioproducer.testing import ApacheKafka
from tests.support.apache_clusters import LEAN, running
from tests.support.commands import run

pytestmark = [pytest.mark.apache, pytest.mark.slow]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
GRANTED = [
    # bob may see one topic and write to none; alice may also write to another one.
    ("bob", "seen", AclOperation.DESCRIBE),
    ("alice", "seen", AclOperation.DESCRIBE),
    ("alice", "written", AclOperation.WRITE),
]


async def prepare(kafka: ApacheKafka) -> None:
    for topic in ("hidden", "seen", "written"):
        await kafka.create_topic(topic)
    for user, topic, operation in GRANTED:
        await grant(kafka, user, ResourceType.TOPIC, topic, operation)


async def grant(
    kafka: ApacheKafka, user: str, kind: ResourceType, name: str, operation: AclOperation
) -> None:
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    binding = AclBinding(kind, name, literal, f"User:{user}", "*", operation, allow)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers_of("INTERNAL")})
    for future in admin.create_acls([binding]).values():
        await asyncio.wrap_future(future)


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    listener = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": f'{PLAIN} user_alice="secret" user_bob="secret";',
    }
    cluster = ApacheKafka(
        listeners={"CLIENT": listener},
        config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "auto.create.topics.enable": False,
        },
        jvm_args=LEAN,
    )
    with running(cluster, prepare, request=request) as started:
        yield started


def producer_of(kafka: ApacheKafka, user: str, **settings: object) -> Producer:
    return Producer(
        kafka.bootstrap_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_without_tls=True,
        sasl_plain_username=user,
        sasl_plain_password="secret",
        linger_ms=0,
        **settings,
    )


async def error_of(producer: Producer, topic: str) -> BaseException:
    with pytest.raises(KafkaError) as caught:
        await asyncio.wait_for(producer.send_and_wait(topic, b"x"), 20)
    return caught.value


async def test_a_permitted_topic_gets_records_and_the_error_names_a_hidden_one(kafka):
    async with producer_of(kafka, "alice") as producer:
        await asyncio.wait_for(producer.send_and_wait("written", b"x"), 20)
        error = await error_of(producer, "hidden")

        assert type(error) is TopicAuthorizationError
        assert error.topic == "hidden"
        assert error.outcome is Outcome.NOT_PERSISTED

        # Other topics still work.
        await asyncio.wait_for(producer.send_and_wait("written", b"y"), 20)


async def test_a_record_for_a_visible_topic_without_write_permission_fails_as_not_persisted(kafka):
    async with producer_of(kafka, "alice") as producer:
        error = await error_of(producer, "seen")

    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert error.outcome is Outcome.NOT_PERSISTED


@pytest.mark.parametrize(
    ("topic", "code", "line"),
    [
        ("written", 0, "✓ rights         WRITE, DESCRIBE"),
        ("seen", 1, "✗ rights         WRITE is not granted (granted: DESCRIBE)"),
        ("hidden", 1, "→ grant DESCRIBE and WRITE on the topic to this user"),
    ],
)
async def test_check_reports_the_rights_on_a_topic(kafka, tmp_path, topic, code, line):
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl_plain_without_tls=true\n"
        f"sasl.jaas.config={PLAIN} username=alice password=secret;\n"
    )

    ended = await run("check", "-b", kafka.bootstrap_servers, "-F", str(config), "--topic", topic)

    assert ended.code == code, ended
    assert line in ended.out


async def test_a_cluster_that_denies_idempotent_writes_fails_the_record_as_not_persisted(kafka):
    async with producer_of(kafka, "bob", delivery_timeout_ms=3000, request_timeout_ms=2000) as producer:
        error = await error_of(producer, "seen")

    assert "CLUSTER_AUTHORIZATION_FAILED" in str(error)
    assert error.outcome is Outcome.NOT_PERSISTED


async def test_the_error_names_a_denied_transactional_id_and_a_granted_one_works(kafka):
    producer = producer_of(kafka, "alice", transactional_id="tx")
    with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
        await asyncio.wait_for(producer.start(), 20)
    await producer.close(timeout=0)

    error = caught.value
    assert type(error) is TransactionReinitError
    assert error.transactional_id == "tx"
    assert error.outcome is Outcome.NOT_PERSISTED
    assert "grant WRITE on the transactional id" in str(error)
    flags = (error.retriable, error.requires_abort, error.requires_reinit, error.fatal)
    assert flags == (False, False, True, False)

    await grant(kafka, "alice", ResourceType.TRANSACTIONAL_ID, "tx", AclOperation.WRITE)
    async with producer_of(kafka, "alice", transactional_id="tx") as producer, producer.transaction():
        await asyncio.wait_for(producer.send_and_wait("written", b"z"), 20)
