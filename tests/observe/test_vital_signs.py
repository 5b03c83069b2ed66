"""The results of ping() and health(): immutable values that can be converted to JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest

from aioproducer.observe.vital_signs import Health, Ping
from aioproducer.types import Node

HEALTH = Health(False, "no broker is connected", "running", 0, 3, 1.5, None)


def test_health_is_plain_data_for_json():
    assert json.loads(json.dumps(HEALTH.as_dict())) == {
        "ok": False,
        "reason": "no broker is connected",
        "state": "running",
        "brokers_connected": 0,
        "brokers_known": 3,
        "oldest_unacked_seconds": 1.5,
        "metadata_age": None,
    }


@pytest.mark.parametrize(("value", "field"), [(HEALTH, "ok"), (Ping(Node(1, "h", 9092), 0.1), "seconds")])
def test_values_cannot_be_changed(value, field):
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, True)
