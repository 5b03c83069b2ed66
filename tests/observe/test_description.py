"""The description of a producer, as text and as data."""

from __future__ import annotations

import asyncio
import json
import platform
import sys

from aioproducer.observe.description import Description, versions


def test_the_block_has_a_line_for_each_value():
    described = Description(
        {"python": "CPython 3.13"},
        {"linger_ms": "5 (explicit)"},
        "running",
        cluster={"id": "abc", "metadata_age": 1.23456},
        brokers=({"node_id": 0, "host": "a"}, {"node_id": 1, "host": "b"}),
        topics={"orders": {"partitions": 3}},
        warnings=({"time": "2026-11-25T07:00:00", "level": "ERROR", "line": "it failed"},),
    )
    assert str(described).splitlines() == [
        "versions:",
        "  python: CPython 3.13",
        "settings:",
        "  linger_ms: 5 (explicit)",
        "state: running",
        "cluster:",
        "  id: abc",
        "  metadata_age: 1.235",
        "brokers:",
        "  - node_id 0, host a",
        "  - node_id 1, host b",
        "topics:",
        "  orders:",
        "    partitions: 3",
        "identity: none",
        "buffer: none",
        "oldest_batches: none",
        "counters: none",
        "warnings:",
        "  - time 2026-11-25T07:00:00, level ERROR, line it failed",
    ]
    assert json.loads(json.dumps(described.as_dict()))["brokers"][1]["host"] == "b"


def test_versions_name_what_the_producer_runs_on():
    loop = asyncio.new_event_loop()
    try:
        found = versions(loop)
    finally:
        loop.close()
    assert found["python"].startswith(f"{platform.python_implementation()} {platform.python_version()}")
    assert ("without the GIL" in found["python"]) is not getattr(sys, "_is_gil_enabled", lambda: True)()
    assert "asyncio" in found["event loop"]
    assert versions(None)["event loop"] == "none yet"


def test_a_library_that_is_missing_is_named_as_such(monkeypatch):
    monkeypatch.setattr("aioproducer.observe.description.LIBRARIES", ("aioproducer", "no-such-library"))
    found = versions(None)
    assert found["no-such-library"] == "not installed"
    assert found["aioproducer"][0].isdigit()
