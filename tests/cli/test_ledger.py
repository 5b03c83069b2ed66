"""The ledger: counts, and the last row before the first unsettled one."""

from __future__ import annotations

from aioproducer import DeliveryError, Outcome
from aioproducer.cli.ledger import Ledger
from aioproducer.cli.rows import InputRows

LOST = DeliveryError("lost", outcome=Outcome.NOT_PERSISTED)
IN_DOUBT = DeliveryError("in doubt")


def test_everything_is_acknowledged_up_to_the_row_before_the_first_failed_one():
    ledger = Ledger()

    ledger.settle(InputRows([1, 3, 4], 5, [b""] * 3), {}, saved=False)
    assert ledger.through == 5
    ledger.settle(InputRows([6, 7, 8], 8, [b""] * 3), {1: LOST}, saved=False)
    ledger.settle(InputRows([9], 9, [b""]), {}, saved=False)

    assert (ledger.through, ledger.delivered, ledger.failed, ledger.delivered_later) == (6, 6, 1, 2)
    assert ledger.has_gap
    assert ledger.first_error == "row 7: lost"


def test_saved_records_are_settled():
    ledger = Ledger(skip=10)

    ledger.settle(InputRows([11, 12], 12, [b""] * 2), {0: LOST, 1: IN_DOUBT}, saved=True)

    assert (ledger.through, ledger.saved, ledger.failed, ledger.unknown) == (12, 2, 1, 1)
    assert not ledger.has_gap


def test_an_error_without_an_outcome_leaves_the_record_in_doubt():
    ledger = Ledger()

    ledger.settle(InputRows([1], 1, [b""]), {0: OSError("x")}, saved=False)

    assert (ledger.failed, ledger.unknown, ledger.through) == (0, 1, 0)
