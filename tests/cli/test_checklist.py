"""The steps of a check: how they are shown and counted."""

from __future__ import annotations

import json

from aioproducer.cli.checklist import Checklist, Status
from aioproducer.cli.screen import Screen


def test_steps_are_grouped_by_place_and_shown_with_advice(capsys):
    checklist = Checklist(Screen())
    checklist.passed("settings", "a", "b")
    checklist.place = "host:1"
    checklist.look("one", "text", "advice")
    checklist.failed("two", "why")

    assert checklist.finish() == 1
    assert capsys.readouterr().out.replace("✓", "ok:").replace("✗", "FAILED:").replace(
        "→", "->"
    ).splitlines()[2:] == [
        "host:1",
        "  ! one            text",
        "    -> advice",
        "  FAILED: two            why",
        "FAILED: 1 step failed",
    ]


def test_a_step_that_needs_attention_is_not_a_failure(capsys):
    checklist = Checklist(Screen(as_json=True))
    checklist.look("one", "text", "advice")

    assert checklist.finish() == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["steps"] == [
        {"place": "", "name": "one", "status": Status.LOOK, "text": "text", "advice": "advice"}
    ]
