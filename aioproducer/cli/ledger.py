"""The ledger of a run: counts records by their result, and tracks the row up to which every record is settled."""

from __future__ import annotations

from collections.abc import Mapping

from aioproducer import Outcome
from aioproducer.cli.rows import InputRows


class Ledger:
    """The results of a run so far. Rows are entered in the order of the input, with the results of all their records.

    A record counts as delivered once a broker has acknowledged it and, in a transaction, the commit has succeeded.
    """

    def __init__(self, skip: int = 0) -> None:
        self.delivered = 0
        self.failed = 0
        """The number of records that are certainly not in the log or are in an aborted transaction."""
        self.unknown = 0
        """The number of records whose outcome is unknown: they may be in the log."""
        self.saved = 0
        """The number of failed and unknown records that are in the --failed file."""
        self.through = skip
        """The last row up to which every record is either delivered or in the --failed file."""
        self.delivered_later = 0
        """The number of delivered records in rows after `through`."""
        self.first_error = ""
        self._is_gapless = True

    @property
    def has_gap(self) -> bool:
        """Whether a record was neither delivered nor saved. If so, the run must stop."""
        return not self._is_gapless

    def settle(self, rows: InputRows, errors: Mapping[int, BaseException], *, saved: bool) -> None:
        """Enter the results of `rows`.

        Args:
            rows: the rows that follow the ones in the previous call.
            errors: the error of each record that was not delivered, by the record's index.
            saved: whether the failed records are in the --failed file.
        """
        unknown = sum(outcome_of(error) is Outcome.UNKNOWN for error in errors.values())
        self.delivered += len(rows) - len(errors)
        self.failed += len(errors) - unknown
        self.unknown += unknown
        if saved:
            self.saved += len(errors)
        first = min(errors, default=None)
        if first is not None:
            self.note(rows.numbers[first], errors[first])
        if not self._is_gapless:
            self.delivered_later += len(rows) - len(errors)
            return
        if first is None or saved:
            self.through = rows.last
        else:
            self.through = rows.numbers[first] - 1
            self._is_gapless = False
            self.delivered_later = len(rows) - len(errors) - first

    def note(self, row: int, error: BaseException) -> None:
        """Keep the text of the first error, for the report."""
        if not self.first_error:
            self.first_error = f"row {row}: {error}"


def outcome_of(error: BaseException) -> Outcome:
    """Return the error's outcome, which says whether the record may be in the log; UNKNOWN if it has none."""
    outcome = getattr(error, "outcome", Outcome.UNKNOWN)
    return outcome if isinstance(outcome, Outcome) else Outcome.UNKNOWN
