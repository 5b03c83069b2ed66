"""Settings checked against each other: contradictions are rejected, and defaults yield, which a note reports."""

from __future__ import annotations

import pytest

from aioproducer import ConfigError
from aioproducer.settings.contradictions import MOST_IN_FLIGHT_WITH_IDEMPOTENCE, settle
from aioproducer.settings.unsettled import UnsettledSettings


def unsettled(**given: object) -> UnsettledSettings:
    return UnsettledSettings({"bootstrap_servers": "a:9092", **given}, {})


@pytest.mark.parametrize(
    ("given", "in_flight"),
    [
        ({}, MOST_IN_FLIGHT_WITH_IDEMPOTENCE),
        ({"max_in_flight_requests_per_connection": 2}, 2),
        ({"acks": 1}, 1),
        ({"acks": 1, "max_in_flight_requests_per_connection": 9}, 9),
    ],
)
def test_without_idempotence_one_batch_of_a_partition_is_in_flight_unless_more_are_set(given, in_flight):
    assert settle(unsettled(**given)) == in_flight


def test_fewer_acks_turn_idempotence_off_with_a_note():
    found = unsettled(acks=1)
    settle(found)

    assert found["enable_idempotence"] is False
    assert "retries may duplicate records" in found.notes[0]


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"acks": 1, "enable_idempotence": True}, "acks"),
        (
            {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True},
            "max_in_flight_requests_per_connection",
        ),
        (
            {"max_in_flight_requests_per_connection": 6, "transactional_id": "t"},
            "max_in_flight_requests_per_connection",
        ),
        (
            {"max_in_flight_requests_per_connection": 6, "enable_gapless_order": True},
            "enable_gapless_order",
        ),
        ({"delivery_timeout_ms": 0}, "delivery_timeout_ms"),
        ({"delivery_timeout_ms": 5, "linger_ms": 5}, "delivery_timeout_ms"),
        ({"transactional_id": "t", "acks": 1}, "transactional_id"),
        ({"transactional_id": "t", "max_block_ms": 0}, "max_block_ms"),
        ({"delivery_timeout_ms": 100, "request_timeout_ms": 200}, "delivery_timeout_ms"),
        ({"retry_backoff_ms": 200, "retry_backoff_max_ms": 100}, "retry_backoff_ms"),
        ({"acks": 1, "enable_gapless_order": True}, "enable_gapless_order"),
        ({"transactional_id": "t", "enable_endless_retries": True}, "enable_endless_retries"),
        ({"partitioner": "round_robin", "partitioner_ignore_keys": True}, "partitioner_ignore_keys"),
    ],
)
def test_contradictory_settings_are_rejected_with_the_name_of_the_setting(given, setting):
    with pytest.raises(ConfigError) as caught:
        settle(unsettled(**given))

    assert caught.value.setting == setting
    assert setting in str(caught.value)


def test_a_default_back_off_yields_to_an_explicit_one():
    found = unsettled(retry_backoff_ms=5000)
    settle(found)

    assert found["retry_backoff_max_ms"] == 5.0
    assert found.notes == ["retry_backoff_ms=5000 sets retry_backoff_max_ms to the same value"]


def test_a_default_delivery_timeout_is_at_most_that_of_a_transaction():
    found = unsettled(transactional_id="t", transaction_timeout_ms=60_000)
    settle(found)

    assert found["delivery_timeout_ms"] == 60.0
    assert found.notes == []
