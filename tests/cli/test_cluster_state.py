"""The steps about a topic; test_check.py runs them against brokers."""

from __future__ import annotations

import pytest

from aioproducer.cli.checklist import Checklist, Status
from aioproducer.cli.cluster_state import NOT_REPORTED, advice_on, check_topic
from aioproducer.cli.screen import Screen
from aioproducer.protocol.messages import MetadataResponse


def answer(*, leader: int = 0, operations: int = NOT_REPORTED) -> MetadataResponse:
    partition = MetadataResponse.MetadataResponsePartition(
        error_code=0, partition_index=3, leader_id=leader, replica_nodes=[0], isr_nodes=[0]
    )
    topic = MetadataResponse.MetadataResponseTopic(
        error_code=0, name="t", partitions=[partition], topic_authorized_operations=operations
    )
    broker = MetadataResponse.MetadataResponseBroker(node_id=7, host="kafka", port=29092)
    return MetadataResponse(brokers=[broker], topics=[topic])


@pytest.mark.parametrize(
    ("operations", "may_write", "text"),
    [
        (1 << 8 | 1 << 4, True, "WRITE, DESCRIBE"),
        (1 << 8, False, "WRITE is not granted (granted: DESCRIBE)"),
        (NOT_REPORTED, True, "the brokers do not report this user's rights"),
    ],
)
def test_rights_come_from_the_authorized_operations(operations, may_write, text):
    checklist = Checklist(Screen(as_json=True))

    assert check_topic(answer(operations=operations), "t", checklist) == may_write
    assert checklist.steps[-1].text == text


def test_a_partition_without_a_leader_is_named():
    checklist = Checklist(Screen(as_json=True))

    assert not check_topic(answer(leader=-1), "t", checklist)
    assert checklist.steps[0].status is Status.FAILED
    assert checklist.steps[0].text == "1 partition, no leader for partition 3"


def test_the_advice_on_an_advertised_address_names_the_setting_of_the_broker():
    [broker] = answer().brokers

    assert (
        "the cluster advertises kafka:29092 to its clients; correct advertised.listeners of broker 7"
        in advice_on(broker, "localhost:9092")
    )
