"""A topic's settings: their names, valid values, and effects."""

from __future__ import annotations

import pytest

from aioproducer.protocol.compression import Codec
from aioproducer.testing.embedded.log_config import LogConfig

CONFIG = LogConfig()


@pytest.mark.promise("Test clusters", "the embedded cluster checks topic settings as the release does")
def test_config_accepts_only_kafkas_names():
    config = CONFIG.changed({"max.message.bytes": "1000", "message.timestamp.type": "LogAppendTime"})

    assert config == LogConfig(max_message_bytes=1000, message_timestamp_type="LogAppendTime")
    assert CONFIG.changed({"retention.ms": "1"}) == CONFIG
    assert CONFIG.changed({"cleanup.policy": "compact, delete"}).is_compacted
    assert CONFIG.changed({"compression.type": "zstd"}).codec is Codec.ZSTD
    assert CONFIG.changed({"compression.type": "producer"}).codec is None


@pytest.mark.promise("Test clusters", "the embedded cluster checks topic settings as the release does")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention", "1"),
        ("max.message.bytes", "many"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", None),
        ("min.insync.replicas", "0"),
        ("message.timestamp.type", "x"),
        ("cleanup.policy", "burn"),
        ("compression.type", "zip"),
        ("min.cleanable.dirty.ratio", "2"),
        ("preallocate", "perhaps"),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: str | None):
    with pytest.raises(ValueError, match=f"topic config {name}={value}"):
        CONFIG.changed({name: value})
