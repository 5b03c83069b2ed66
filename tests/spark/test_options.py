"""Tests of the options of a write: those that the driver accepts, and those that it rejects before a task runs."""

from __future__ import annotations

import pickle

import pytest

from aioproducer import ConfigError, MetadataTimeoutError
from aioproducer.spark.options import (
    LONGEST_TRANSACTION,
    MissingTopicError,
    PlanningError,
    SinkOptions,
    in_options,
    read_options,
)
from tests.support.spark_stage import stage

SERVERS = {"kafka.bootstrap.servers": "a:9092"}
EXACTLY_ONCE = {**SERVERS, "topic": "t", "delivery": "exactly_once", "transactionalId": "x"}

SEVERAL = {name: value for name, value in EXACTLY_ONCE.items() if name != "topic"}


def test_kafkas_options_are_passed_to_the_producer_and_sparks_own_are_ignored():
    options = read_options(
        {**SERVERS, "kafka.Linger.ms": "7", "topic": "t", "checkpointLocation": "/x"}, is_stream=True
    )

    assert options.kafka == {"bootstrap.servers": "a:9092", "linger.ms": "7"}
    assert (options.topic, options.exactly_once) == ("t", False)


def test_a_delegation_token_is_the_login_of_scram():
    login = 'ScramLoginModule required username="id" password="hmac" tokenauth="true";'
    told = read_options(
        {
            **SERVERS,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.scram.{login}",
        },
        is_stream=False,
    )

    assert told.producer().config.sasl_scram_token_auth


def test_exactly_once_knows_its_topics():
    assert read_options(EXACTLY_ONCE, is_stream=True).topics == ("t",)
    several = read_options({**SEVERAL, "topics": "b, a"}, is_stream=True)
    assert (several.topic, several.topics) == (None, ("b", "a"))
    with pytest.raises(ConfigError, match="set the 'topic' option, or topics=a,b,c"):
        read_options(SEVERAL, is_stream=True)


def test_exactly_once_gives_a_transaction_the_longest_time_that_brokers_allow():
    options = read_options(EXACTLY_ONCE, is_stream=True)

    assert options.exactly_once
    assert options.transactional_id == "x"
    assert options.kafka["transaction.timeout.ms"] == LONGEST_TRANSACTION


@pytest.mark.parametrize(
    ("given", "setting", "words"),
    [
        ({}, "kafka.bootstrap.servers", "bootstrap.servers is not set"),
        ({**SERVERS, "topik": "t"}, "topik", "did you mean topic?"),
        ({**SERVERS, "topics": "a,b"}, "topics", "requires delivery=exactly_once"),
        ({**EXACTLY_ONCE, "topics": "a,b"}, "topics", "but not both"),
        ({**SEVERAL, "topics": "a,,b"}, "topics", "different topics, separated by commas"),
        ({**SEVERAL, "topics": "a, a"}, "topics", "different topics, separated by commas"),
        ({**SERVERS, "linger.ms": "7"}, "linger.ms", "write a producer setting as kafka.linger.ms"),
        ({**SERVERS, "topic": ""}, "topic", "the name of a topic"),
        ({**SERVERS, "delivery": "once"}, "delivery", "at_least_once or exactly_once"),
        ({**SERVERS, "transactionalId": "x"}, "transactionalId", "requires delivery=exactly_once"),
        ({**SERVERS, "kafka.value.serializer": "x"}, "value.serializer", "ByteArraySerializer"),
        ({**EXACTLY_ONCE, "transactionalId": ""}, "transactionalId", "a name that only this query uses"),
        ({**EXACTLY_ONCE, "txnAppId": "a"}, "txnAppId", "must be set together"),
        ({**EXACTLY_ONCE, "txnAppId": "a", "txnVersion": "-1"}, "txnVersion", "a whole number"),
    ],
)
def test_invalid_options_are_rejected_by_name(given, setting, words):
    with pytest.raises(ConfigError) as caught:
        read_options(given, is_stream=False)

    assert caught.value.setting == setting
    assert words in str(caught.value)


def test_a_stream_has_its_own_version():
    with pytest.raises(ConfigError, match="are for batch writes"):
        read_options({**EXACTLY_ONCE, "txnAppId": "a", "txnVersion": "1"}, is_stream=True)


def test_options_are_sent_to_the_executors_and_show_no_password():
    given = {**SERVERS, "kafka.ssl.key.password": "canary", "kafka.security.protocol": "SSL"}
    given |= {"kafka.ssl.keystore.location": "/k.pem"}
    options = SinkOptions(dict(given), "t")

    assert pickle.loads(pickle.dumps(options)) == options
    assert "canary" not in repr(options)


def test_reports_need_a_directory(tmp_path):
    SinkOptions({}, reports=str(tmp_path / "reports.jsonl")).check_reports()

    with pytest.raises(ConfigError, match="reports"):
        SinkOptions({}, reports=str(tmp_path / "no" / "reports.jsonl")).check_reports()


@pytest.mark.parametrize(
    ("given", "is_pushed"),
    [
        ({}, False),
        ({"kafka.enable.metrics.push": "true"}, True),
        ({"kafka.enable_metrics_push": "true"}, True),
        ({"kafka.enable.metrics.push": "false"}, False),
    ],
)
def test_a_task_pushes_metrics_only_if_the_option_is_set(given, is_pushed):
    producer = read_options({**SERVERS, "topic": "t", **given}, is_stream=False).producer()

    assert producer.config.enable_metrics_push is is_pushed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no answer within 60 s (max_block_ms)", "no answer within 60 s (kafka.max.block.ms)"),
        ("raise transaction_timeout_ms=900000", "raise kafka.transaction.timeout.ms=900000"),
        ("sasl_oauthbearer_client_id and acks", "kafka.sasl.oauthbearer.client.id and acks"),
        ("topic my_max_block_ms_topic", "topic my_max_block_ms_topic"),
        ("set kafka.max.block.ms", "set kafka.max.block.ms"),
    ],
)
def test_errors_name_options_and_not_settings(text, expected):
    assert in_options(text) == expected


def test_a_planning_error_passes_pysparks_serializer_unchanged():
    """The serializer wraps any other error: "Could not serialize object"."""
    from pyspark.serializers import CloudPickleSerializer

    class Planned:
        def __getstate__(self):
            raise PlanningError("the topic is missing")

    with pytest.raises(PlanningError, match=r"^the topic is missing$"):
        CloudPickleSerializer().dumps(Planned())
    assert isinstance(pickle.loads(pickle.dumps(PlanningError("x"))), PlanningError)


@pytest.mark.promise("Spark", "a missing topic is reported within 10 s, and a silent cluster is waited for")
def test_a_missing_topic_is_reported_soon_and_a_known_one_is_counted(monkeypatch):
    monkeypatch.setattr("aioproducer.spark.options.TOPIC_WAIT", 0.3)
    with stage(1, topics={"t": 3}, auto_create=False) as cluster:
        options = SinkOptions({"bootstrap.servers": cluster.servers})
        with options.producer() as producer:
            assert options.partitions_of(producer, "t") == 3
            with pytest.raises(MissingTopicError, match=r"the cluster reports .*PARTITION; create the topic"):
                options.partitions_of(producer, "missing")
        patient = SinkOptions({"bootstrap.servers": cluster.servers, "max.block.ms": "600"})
        with (
            patient.producer() as producer,
            pytest.raises(MissingTopicError, match=r"after (0\.[6-9]|[1-9])"),
        ):
            patient.partitions_of(producer, "missing")


class Silent:
    """A producer whose brokers answer the second request for metadata."""

    def __init__(self):
        self.timeouts = []

    def partitions_for(self, topic, *, timeout=None):
        self.timeouts.append(timeout)
        if len(self.timeouts) == 1:
            raise MetadataTimeoutError("the cluster has not answered yet", topic=topic)
        return {0, 1}


def test_brokers_that_do_not_answer_are_waited_for_until_the_time_limit():
    producer = Silent()

    assert SinkOptions({}).partitions_of(producer, "t") == 2
    assert producer.timeouts == [10.0, None]
