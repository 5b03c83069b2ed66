"""A walk over the error table: each cell is played over the wire in virtual time, and its result is compared.

The expected rows are repeated here and in test_outcomes.py, so that a changed cell is noticed. An added cell is
also noticed, since it has no row here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from aioproducer.protocol import outcomes
from aioproducer.protocol.api import ApiKey
from aioproducer.protocol.error_codes import ErrorCode as Code
from aioproducer.protocol.outcomes import Action, Condition, Failure, Moment, Row
from aioproducer.types import Outcome
from tests.protocol.test_outcomes import ELSE, ROWS, rows_by_code
from tests.support.error_table import (
    connections,
    coordinators,
    failures,
    moments,
    other_writers,
    produce,
    telemetry,
)
from tests.support.error_table.stage import OTHER, Cell, cells, consulted

pytestmark = pytest.mark.slow

NO, MAYBE = Outcome.NOT_PERSISTED, Outcome.UNKNOWN
PRODUCE, END_TXN = ApiKey.PRODUCE, ApiKey.END_TXN
UNKNOWN_CODE = 9999
"""A code that no current broker sends."""

C = Condition
LOST = (
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Code.UNKNOWN_PRODUCER_ID,
    Code.INVALID_PRODUCER_EPOCH,
    Code.INVALID_PRODUCER_ID_MAPPING,
)
TOO_LARGE = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
INVALID = (Code.INVALID_RECORD, Code.INVALID_TIMESTAMP)
ABORTING = (
    Code.INVALID_TXN_STATE,
    Code.TRANSACTION_ABORTABLE,
    Code.INVALID_TOPIC_EXCEPTION,
    Code.INVALID_REQUIRED_ACKS,
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.INVALID_REQUEST,
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    Code.POLICY_VIOLATION,
    Code.UNSUPPORTED_COMPRESSION_TYPE,
)
SHUT_OUT = (Code.PRODUCER_FENCED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
FENCED = (
    Code.INVALID_PRODUCER_EPOCH,
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Code.UNKNOWN_PRODUCER_ID,
)
OF_GROUPS = (Code.GROUP_AUTHORIZATION_FAILED, Code.TRANSACTION_ABORTABLE)
CONNECTION_LOST = (Failure.CUT, Failure.TIMED_OUT, Failure.WRONG_CORRELATION_ID, Failure.UNDECODABLE)

# Rules with conditions: API, codes or events, conditions, expected row.
CONDITIONED: list[tuple[ApiKey | None, tuple[Code | Failure | Moment | None, ...], set[Condition], Row]] = [
    (PRODUCE, (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER), {C.REPETITION}, Row(Action.ABORT, MAYBE)),
    (PRODUCE, LOST, {C.NOT_IDEMPOTENT}, Row(Action.FAIL, NO)),
    (PRODUCE, LOST, {C.NOT_FIRST}, Row(Action.HOLD, NO)),
    (PRODUCE, LOST, {C.IN_DOUBT}, Row(Action.FAIL, MAYBE)),
    (PRODUCE, LOST[:3], {C.TRANSACTION}, Row(Action.ABORT, NO)),
    (PRODUCE, LOST[3:], {C.TRANSACTION}, Row(Action.REINIT, NO)),
    (PRODUCE, (Code.INVALID_PRODUCER_EPOCH,), {C.TRANSACTION, C.V1}, Row(Action.REINIT, NO)),
    (PRODUCE, (Code.CORRUPT_MESSAGE,), {C.DAMAGED}, Row(Action.DAMAGED, NO)),
    (PRODUCE, (Code.CORRUPT_MESSAGE,), {C.THIRD_TIME}, Row(Action.FAIL, NO)),
    (PRODUCE, (Code.UNSUPPORTED_VERSION,), {C.SECOND_TIME}, Row(Action.FAIL, NO)),
    (PRODUCE, (Code.UNSUPPORTED_VERSION,), {C.TRANSACTION, C.SECOND_TIME}, Row(Action.ABORT, NO)),
    (PRODUCE, (Code.INVALID_PRODUCER_EPOCH,), {C.STALE}, Row(Action.RENUMBER, NO)),
    (PRODUCE, TOO_LARGE, {C.IN_DOUBT}, Row(Action.FAIL, MAYBE)),
    (PRODUCE, TOO_LARGE, {C.SEVERAL_RECORDS}, Row(Action.SPLIT, NO)),
    (PRODUCE, INVALID, {C.TRANSACTION}, Row(Action.ABORT, NO)),
    (PRODUCE, INVALID, {C.IN_DOUBT}, Row(Action.FAIL, MAYBE)),
    (PRODUCE, INVALID, {C.GAPLESS}, Row(Action.FAIL, NO)),
    (PRODUCE, INVALID, {C.RECORD_ERRORS}, Row(Action.RESEND_INNOCENT, NO)),
    (PRODUCE, (Code.NOT_ENOUGH_REPLICAS,), {C.TRANSACTION, C.VERIFICATION}, Row(Action.RETRY_SOON, NO)),
    (PRODUCE, (Code.CONCURRENT_TRANSACTIONS,), {C.TRANSACTION}, Row(Action.RETRY_SOON, NO)),
    (PRODUCE, ABORTING, {C.TRANSACTION}, Row(Action.ABORT, NO)),
    (PRODUCE, SHUT_OUT, {C.TRANSACTION}, Row(Action.REINIT, NO)),
    (PRODUCE, (OTHER,), {C.TRANSACTION}, Row(Action.ABORT, MAYBE)),
    (ApiKey.FIND_COORDINATOR, OF_GROUPS, set(), Row(Action.ABORT, NO)),
    (ApiKey.TXN_OFFSET_COMMIT, (Code.INVALID_PRODUCER_EPOCH,), {C.V2}, Row(Action.ABORT, NO)),
    (END_TXN, FENCED, {C.COMMIT, C.UNANSWERED}, Row(Action.REINIT, MAYBE)),
    (END_TXN, (Code.INVALID_TXN_STATE,), {C.V2, C.COMMIT}, Row(Action.ABORT, NO)),
    (END_TXN, (Code.INVALID_TXN_STATE,), {C.COMMIT, C.UNANSWERED}, Row(Action.REINIT, MAYBE)),
    (END_TXN, (Code.INVALID_TXN_STATE,), {C.COMMIT}, Row(Action.REINIT, NO)),
    (END_TXN, (Code.INVALID_TXN_STATE,), {C.V1}, Row(Action.SUCCEED, NO)),
    (END_TXN, (Code.TRANSACTION_ABORTABLE,), {C.COMMIT}, Row(Action.ABORT, NO)),
    (END_TXN, (OTHER,), {C.COMMIT}, Row(Action.REINIT, MAYBE)),
    (None, CONNECTION_LOST, {C.ACKS_0}, Row(Action.FAIL, MAYBE)),
    (None, (*CONNECTION_LOST, Failure.MISSING_PARTITION), set(), Row(Action.REFRESH, MAYBE)),
    (None, (Failure.FOREIGN_PARTITION,), set(), Row(Action.REFRESH, MAYBE)),
    (None, (Failure.NOT_WRITTEN,), set(), Row(Action.REFRESH, NO)),
    (None, (Failure.NO_COMMON_VERSION,), set(), Row(Action.FAIL, NO)),
    (None, (Moment.EXPIRED,), {C.ENDLESS, C.IN_FLIGHT}, Row(Action.KEEP, MAYBE)),
    (None, (Moment.EXPIRED,), {C.ENDLESS, C.IN_DOUBT}, Row(Action.KEEP, MAYBE)),
    (None, (Moment.EXPIRED,), {C.IN_FLIGHT}, Row(Action.FAIL, MAYBE)),
    (None, (Moment.EXPIRED,), {C.IN_DOUBT}, Row(Action.FAIL, MAYBE)),
    (None, (Moment.EXPIRED,), set(), Row(Action.FAIL, NO)),
    (None, (Moment.BEHIND,), {C.IN_FLIGHT}, Row(Action.KEEP, MAYBE)),
    (None, (Moment.BEHIND,), {C.IN_DOUBT}, Row(Action.FAIL, MAYBE)),
    (None, (Moment.BEHIND,), set(), Row(Action.FAIL, NO)),
]


def decided() -> dict[Cell, Row]:
    """Return all expected cells with their rows."""
    found = {}
    for api, rows in ROWS.items():
        conditioned = {what for of, whats, *_ in CONDITIONED if of is api for what in whats}
        named = {code for codes in rows.values() for code in codes} | {Code.NONE} | (conditioned - {OTHER})
        by_code = rows_by_code(api, rows)
        found |= {Cell(api, code, frozenset()): by_code[code] for code in named}
        found[Cell(api, OTHER, frozenset())] = ELSE[api]
    for api, whats, when, row in CONDITIONED:
        found |= {Cell(api, what, frozenset(when)): row for what in whats}
    return found


DECIDED = decided()

Scene = Callable[[], list[Row]]


def scenes(cell: Cell) -> dict[str, tuple[Scene, Row]]:
    """Return the scenes that play the cell, by name, each with its expected row."""
    found: dict[str, tuple[Scene, Row]] = {}
    row = DECIDED.get(cell, cell.row)
    if isinstance(cell.what, Failure):
        return {"": (partial(failures.walk, cell), row)}
    if isinstance(cell.what, Moment):
        return {"": (partial(_one, partial(moments.walk, cell)), row)}
    assert cell.api is not None
    for code in codes(cell):
        name = f"code {code}" if cell.what is None else ""
        if cell.api is PRODUCE:
            for version in produce.versions(cell):
                scene = partial(_one, partial(produce.walk, cell, code, version))
                found[f"{name} v{version}"] = scene, row
        elif cell.api in (ApiKey.METADATA, ApiKey.API_VERSIONS, *connections.SASL):
            found[name] = partial(connections.walk, cell.api, code), row
        elif cell.api in (telemetry.SUBSCRIBE, telemetry.PUSH):
            found[name] = partial(telemetry.walk, cell.api, code), row
        elif cell.api is other_writers.ASK:
            found[name] = partial(_one, partial(other_writers.walk, code)), row
        else:
            for case in coordinators.cases(cell):
                found[f"{name} {case}"] = partial(_one, partial(coordinators.walk, cell, code, case)), row
        if cell.api is ApiKey.INIT_PRODUCER_ID:
            # Any broker assigns a producer id, and without a transactional id there is nothing to initialize again.
            without_id = {Action.REINIT: Action.FAIL, Action.COORDINATOR: Action.RETRY}
            seen = Row(without_id.get(row.action, row.action), row.outcome)
            found[f"{name} idempotent"] = partial(connections.walk, cell.api, code), seen
    return found


def _one(play: Callable[[], Row]) -> list[Row]:
    return [play()]


def codes(cell: Cell) -> list[int]:
    """Return the codes with which the cell is played; for codes without a row, a known and an unknown one."""
    assert not isinstance(cell.what, Moment)
    if cell.what is not None:
        return [int(cell.what)]
    known = next(code for code in Code if (cell.api, int(code)) not in outcomes.TABLE)
    return [int(known), UNKNOWN_CODE]


PLAYED = [
    pytest.param(cell, scene, row, id=" ".join(f"{cell.name} {name}".split()))
    for cell in cells()
    for name, (scene, row) in scenes(cell).items()
]


@pytest.mark.promise(
    "Error table",
    "each cell of the table is played over the wire and ends as was decided; a cell that is added or "
    "changed is noticed",
)
def test_each_cell_of_the_table_has_an_expected_row_and_a_scene():
    found = cells()

    assert len(found) == len(set(found)), "the second of two rules with the same conditions is never reached"
    assert set(found) == set(DECIDED)
    assert {parameters.values[0] for parameters in PLAYED} == set(found)


@pytest.mark.promise(
    "Error table",
    "each cell of the table is played over the wire and ends as was decided; a cell that is added or "
    "changed is noticed",
)
@pytest.mark.parametrize(("cell", "scene", "row"), PLAYED)
def test_the_expected_row_is_in_the_table_and_is_observed(cell, scene, row):
    with consulted() as asked:
        seen = scene()

    assert cell.row == DECIDED[cell]
    assert (cell.rules, cell.when) in asked, "the scene consulted this cell"
    assert seen == [row] * len(seen)
