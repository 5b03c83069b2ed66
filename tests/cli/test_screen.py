"""The screen: results and messages on their streams."""

from __future__ import annotations

import json
import logging
import os

from aioproducer.cli.screen import Screen


def test_results_and_messages_go_to_their_streams(capsys):
    screen = Screen()

    screen.result("[bold]result[/bold]")
    screen.say("message")
    screen.warn("careful")
    screen.fail("no [red]markup[/red]")

    out, err = capsys.readouterr()
    assert out == "[bold]result[/bold]\n"
    assert err.splitlines()[:2] == ["message", "warning: careful"]
    assert err.endswith(" no [red]markup[/red]\n")


def test_with_json_standard_output_has_nothing_else(capsys):
    screen = Screen(as_json=True)

    screen.result("for people")
    screen.json({"text": "é", "long": "x" * 500})

    assert json.loads(capsys.readouterr().out) == {"text": "é", "long": "x" * 500}


def test_the_log_is_shown_from_the_requested_level_on(capsys):
    log = logging.getLogger("aioproducer")
    Screen().show_log(1)
    log.debug("hidden")
    log.info("shown")
    log.warning("a warning")
    log.error("an error")

    assert [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "shown",
        "a warning",
        "an error",
    ]


def test_after_a_broken_pipe_nothing_is_written_and_nothing_is_raised():
    reading, writing = os.pipe()
    os.close(reading)
    screen = Screen()
    with open(writing, "w") as broken:
        screen.out.file = broken

        screen.result("lost")
        screen.result("lost too")

        assert screen.out.quiet


def test_in_a_pipe_no_line_is_wrapped_or_cut(capsys):
    Screen().result("x" * 300, indent=2)

    assert capsys.readouterr().out == "  " + "x" * 300 + "\n"
