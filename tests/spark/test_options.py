"""Tests of the options of a write: those that the driver accepts, and those that it rejects before a task runs."""

from __future__ import annotations

import pickle

import pytest

from aioproducer import ConfigError
from aioproducer.spark.options import LONGEST_TRANSACTION, SinkOptions, read_options

SERVERS = {"kafka.bootstrap.servers": "a:9092"}
EXACTLY_ONCE = {**SERVERS, "topic": "t", "delivery": "exactly_once", "transactionalId": "x"}


def test_kafkas_options_go_to_the_producer_and_sparks_own_are_ignored():
    options = read_options(
        {**SERVERS, "kafka.Linger.ms": "7", "topic": "t", "checkpointLocation": "/x"}, is_stream=True
    )

    assert options.kafka == {"bootstrap.servers": "a:9092", "linger.ms": "7"}
    assert (options.topic, options.exactly_once) == ("t", False)


def test_exactly_once_gives_a_transaction_the_longest_time_that_brokers_allow():
    options = read_options(EXACTLY_ONCE, is_stream=True)

    assert options.exactly_once
    assert options.transactional_id == "x"
    assert options.kafka["transaction.timeout.ms"] == LONGEST_TRANSACTION


@pytest.mark.parametrize(
    ("given", "setting", "words"),
    [
        ({}, "kafka.bootstrap.servers", "bootstrap.servers is not set"),
        ({**SERVERS, "topics": "t"}, "topics", "did you mean topic?"),
        ({**SERVERS, "linger.ms": "7"}, "linger.ms", "write a producer setting as kafka.linger.ms"),
        ({**SERVERS, "topic": ""}, "topic", "the name of a topic"),
        ({**SERVERS, "delivery": "once"}, "delivery", "at_least_once or exactly_once"),
        ({**SERVERS, "transactionalId": "x"}, "transactionalId", "needs delivery=exactly_once"),
        ({**SERVERS, "kafka.value.serializer": "x"}, "value.serializer", "ByteArraySerializer"),
        ({**EXACTLY_ONCE, "transactionalId": ""}, "transactionalId", "a name that only this query uses"),
        ({**EXACTLY_ONCE, "txnAppId": "a"}, "txnAppId", "belong together"),
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


def test_options_travel_to_the_executors_and_show_no_password():
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
def test_a_task_pushes_no_metrics_unless_it_is_told_to(given, is_pushed):
    producer = read_options({**SERVERS, "topic": "t", **given}, is_stream=False).producer()

    assert producer.config.enable_metrics_push is is_pushed
