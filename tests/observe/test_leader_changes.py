"""Log lines about partitions that lost their leader or have a new one."""

from __future__ import annotations

import logging

import pytest

from aioproducer.observe.client_log import ClientLog
from aioproducer.observe.leader_changes import LeaderChanges


@pytest.fixture
def changes(caplog) -> LeaderChanges:
    caplog.set_level(logging.INFO)
    return LeaderChanges(ClientLog("aioproducer.x", "orders"))


def test_the_first_leader_of_a_partition_is_not_logged(changes, caplog):
    changes.note("t", 0, -1, 1)
    changes.log_changes()
    assert caplog.messages == []


def test_a_move_names_both_brokers_and_the_number_of_others(changes, caplog):
    changes.note("t", 0, 1, 2)
    changes.log_changes()
    for partition in range(3):
        changes.note("t", partition, 2, 1)
    changes.log_changes()
    changes.log_changes()

    assert caplog.messages == [
        "[producer orders] the leader moved: t-0 from broker 1 to broker 2",
        "[producer orders] the leader moved: t-0 from broker 2 to broker 1 and 2 other partitions",
    ]


def test_a_lost_leader_has_a_warning_and_a_later_one_is_logged_as_a_move(changes, caplog):
    changes.note("t", 0, 1, -1)
    changes.log_changes()
    changes.note_waiting([("t", 0)], 0.0)
    changes.note_waiting([("t", 0)], 0.0)
    changes.note("t", 0, -1, 2)
    changes.log_changes()

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.messages == [
        "[producer orders] records are waiting: no leader for t-0",
        "[producer orders] the leader moved: t-0 from broker 1 to broker 2",
    ]


def test_a_lost_leader_has_no_warning_before_records_wait_for_it(changes, caplog):
    for partition in range(3):
        changes.note("t", partition, 1, -1)
    changes.log_changes()
    changes.note_waiting([], 0.0)
    assert caplog.messages == []

    changes.note_waiting([("t", 1)], 0.0)
    changes.note_waiting([("t", 1), ("t", 0), ("t", 2)], 0.0)
    assert caplog.messages == [
        "[producer orders] records are waiting: no leader for t-1",
        "[producer orders] records are waiting: no leader for t-0 and 1 other partition",
    ]


def test_while_a_leader_is_missing_there_is_a_line_every_ten_seconds(changes, caplog):
    changes.note("t", 0, 1, -1)
    changes.note("t", 1, 1, -1)
    for now in range(25):
        changes.note_waiting([("t", 0)], 100.0 + now)
    changes.note_waiting([("t", 1)], 125.0)
    assert caplog.messages == [
        "[producer orders] records are waiting: no leader for t-0",
        "[producer orders] records have been waiting for 10 s: no leader for t-0",
        "[producer orders] records have been waiting for 20 s: no leader for t-0",
        "[producer orders] records are waiting: no leader for t-1",
    ]


def test_a_leader_that_is_lost_again_has_a_warning_again(changes, caplog):
    for _ in range(2):
        changes.note("t", 0, 1, -1)
        changes.note_waiting([("t", 0)], 0.0)
        changes.note("t", 0, -1, 1)
        changes.log_changes()
    assert caplog.messages == ["[producer orders] records are waiting: no leader for t-0"] * 2


def test_a_new_partition_without_a_leader_has_no_warning(changes, caplog):
    changes.note_waiting([("t", 0)], 0.0)
    assert caplog.messages == []


def test_a_returning_leader_is_not_logged_as_a_move(changes, caplog):
    changes.note("t", 0, 1, -1)
    changes.log_changes()
    caplog.clear()
    changes.note("t", 0, -1, 1)
    changes.log_changes()
    assert caplog.messages == []


def test_a_forgotten_topic_leaves_nothing_behind(changes, caplog):
    changes.note("t", 0, 1, -1)
    changes.note("u", 0, 1, -1)
    changes.forget("t")
    assert list(changes._former) == [("u", 0)]
