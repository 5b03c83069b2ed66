"""The transactions of one log: open ones, aborted ones, and the last stable offset."""

from __future__ import annotations

from aioproducer.testing.embedded.transaction_index import AbortedTxn, TransactionIndex


def test_the_first_record_of_an_open_transaction_is_the_last_stable_offset():
    index = TransactionIndex()
    index.begin(7, 4)
    index.begin(8, 5)
    index.begin(7, 6)
    assert index.last_stable_offset(10) == 4
    index.end(7, 7, commit=True)
    assert index.last_stable_offset(7) == 4  # the marker is not yet replicated
    assert index.last_stable_offset(10) == 5
    index.end(8, 8, commit=False)
    assert index.last_stable_offset(10) == 10
    assert index.aborted == [AbortedTxn(8, 5, 8)]


def test_a_marker_without_records_before_it_changes_nothing():
    index = TransactionIndex()
    index.end(7, 0, commit=False)
    assert index.last_stable_offset(1) == 1
    assert index.aborted == []
