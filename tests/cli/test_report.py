"""The report of a run: its text, its JSON and its exit code."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from aioproducer import DeliveryError, Outcome
from aioproducer.cli.exits import ExitCode
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.report import Report
from aioproducer.cli.rows import InputRows
from aioproducer.cli.screen import Screen


def report(
    ledger: Ledger, *, as_json: bool = False, rows_read: int | None = None, problem: str = "", **more
) -> Report:
    delivery = SimpleNamespace(
        ledger=ledger,
        feed=SimpleNamespace(problem=problem, rows_read=rows_read),
        target=SimpleNamespace(topic="t"),
        producer=SimpleNamespace(config=SimpleNamespace(transactional_id=None)),
        problem="",
        code=ExitCode.OK,
    )
    vars(delivery).update(more)
    return Report(Screen(as_json=as_json), delivery, None)


def settled(error: DeliveryError | None = None) -> Ledger:
    ledger = Ledger()
    ledger.settle(InputRows([1, 2], 2, [b"", b""]), {} if error is None else {1: error}, saved=False)
    return ledger


LOST = DeliveryError("lost", outcome=Outcome.NOT_PERSISTED)


@pytest.mark.parametrize(
    ("made", "interrupted", "code"),
    [
        (report(settled(), rows_read=2), False, 0),
        (report(settled(), rows_read=2), True, 130),
        (report(settled(LOST), rows_read=2), False, 1),
        (report(settled(DeliveryError("in doubt")), rows_read=2), False, 3),
        (report(settled(), problem="line 3: bad"), False, 1),
        (report(settled(), problem="no", code=ExitCode.FAILED), False, 1),
        (report(Ledger(skip=5), rows_read=2), False, 2),
    ],
)
def test_a_run_has_its_exit_code(made, interrupted, code):
    assert made.write(was_interrupted=interrupted) == code


def test_the_report_of_a_run_that_ended_early_says_how_to_continue(capsys):
    report(settled(LOST)).write(was_interrupted=False)

    said = capsys.readouterr().err
    assert "1 record delivered to t" in said
    assert "1 record not delivered" in said
    assert "row 2: lost" in said
    assert "Every record up to row 1 is delivered. To continue: --skip 1" in said


def test_json_has_the_facts(capsys):
    report(settled(), as_json=True, rows_read=2).write(was_interrupted=False)

    facts = json.loads(capsys.readouterr().out)
    assert (facts["delivered"], facts["acknowledged_through"], facts["complete"], facts["exit_code"]) == (
        2,
        2,
        True,
        0,
    )
