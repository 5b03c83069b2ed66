"""`aioproducer config`: each line of a file, and whether the whole file is accepted."""

from __future__ import annotations

from aioproducer import ProducerConfig
from aioproducer.cli.config import Line, changed, lines_of
from tests.support.commands import on_terminal, run

GOOD = "bootstrap.servers=a:9092\nqueue.buffering.max.ms=7\nretries=5\nsocket.nagle.disable=true\n"


def test_each_line_is_used_ignored_or_rejected(tmp_path):
    file = tmp_path / "f"
    file.write_text(GOOD + "lingr.ms=3\nlinger.ms=abc\nssl.key.password=hunter2\n")

    lines = list(lines_of(file))

    assert lines[0] == Line(1, "bootstrap.servers", "used", "bootstrap_servers = 'a:9092'")
    assert (lines[1].handled, lines[1].text) == ("used", "linger_ms = 7")
    assert (lines[2].handled, lines[2].text) == (
        "ignored",
        "records are retried until delivery_timeout_ms has passed",
    )
    assert (lines[3].handled, lines[3].text) == ("used", "aioproducer does this anyway")
    assert (lines[4].handled, lines[4].text) == (
        "rejected",
        "there is no setting lingr.ms; did you mean linger.ms?",
    )
    assert lines[5].text == "linger.ms='abc' must be a number of milliseconds, 0 or more"
    assert lines[6].text == "ssl_key_password = <hidden>"


def test_only_settings_that_differ_from_their_defaults_are_listed():
    assert changed(ProducerConfig.of(linger_ms=9)) == ["linger_ms = 9 (explicit)"]


async def test_a_good_file_is_accepted_with_its_origins(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(GOOD)

    ended = await run("config", str(file), "-X", "acks=1", env={"AIOPRODUCER_CLIENT_ID": "env"})

    assert ended.code == 0
    assert "   2 queue.buffering.max.ms ✓ linger_ms = 7\n" in ended.out
    assert "✓ accepted; the settings that differ from the defaults:\n" in ended.out
    assert f"  linger_ms = 7 ({file}:2 as queue.buffering.max.ms)\n" in ended.out
    assert "  client_id = env (environment AIOPRODUCER_CLIENT_ID)\n" in ended.out
    assert "  acks = 1 (explicit)\n" in ended.out


async def test_a_bad_file_ends_with_2_and_all_its_lines_are_explained(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("lingr.ms=3\nack=all\nsasl.password=hunter2\n")

    ended = await run("config", str(file), "--json")
    missing = await run("config", str(tmp_path / "missing"))

    assert (ended.code, missing.code) == (2, 2)
    assert [line["handled"] for line in ended.json["lines"]] == ["rejected", "rejected", "used"]
    assert "lingr.ms" in ended.json["error"]
    assert "hunter2" not in ended.out + ended.err
    assert "there is no such file" in missing.err


async def test_a_terminal_shows_the_lines(tmp_path):
    file = tmp_path / "f"
    file.write_text(GOOD)
    async with on_terminal("config", str(file)) as terminal:
        code = await terminal.ended()

    assert code == 0
    assert "✓ linger_ms = 7" in terminal.shown
