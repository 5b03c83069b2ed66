"""`aioproducer info`: versions and settings, no secrets."""

from __future__ import annotations

import os
import platform

from aioproducer.cli.info import LIBRARIES, info
from tests.support.commands import on_terminal, run


async def test_versions_and_settings_are_shown_without_secrets(tmp_path):
    file = tmp_path / "f"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password=hunter2\n"
    )

    ended = await run("info", "-F", str(file))
    as_json = await run("info", "--json")

    assert (ended.code, as_json.code) == (0, 0)
    assert f"python: CPython {platform.python_version()}\n" in ended.out
    assert "aioproducer: 0.1.0\n" in ended.out
    assert f"sasl_plain_username = ann ({file}:3 as sasl.username)\n" in ended.out
    assert "hunter2" not in ended.out + ended.err
    assert set(LIBRARIES[:2]) <= set(as_json.json["versions"])
    assert info.__doc__ is not None


async def test_output_without_a_reader_is_not_a_failure():
    reading, writing = os.pipe()
    os.close(reading)

    ended = await run("info", stdout=writing)
    os.close(writing)

    assert (ended.code, ended.err) == (0, "")


async def test_a_terminal_shows_the_versions():
    async with on_terminal("info") as terminal:
        assert await terminal.ended() == 0

    assert "aioproducer: 0.1.0" in terminal.shown
