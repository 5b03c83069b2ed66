"""CPU per record, relative to aiokafka's in the same run, does not exceed the ratio stored in the repository."""

from __future__ import annotations

import pytest

import regression
from regression import CASES, MARGIN, MARGIN_WITH_USER_CODE, Verdict

pytestmark = pytest.mark.slow


@pytest.mark.promise("Speed", "CPU per record, relative to aiokafka's, does not grow unnoticed")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cpu_per_record_has_not_grown_relative_to_aiokafka(case):
    verdict = Verdict(tuple(regression.measured(case)), regression.stored()[case.name], case.margin)

    assert verdict.holds, str(verdict)


@pytest.mark.promise("Speed", "CPU per record, relative to aiokafka's, does not grow unnoticed")
def test_a_ratio_beyond_the_margin_and_the_noise_of_the_run_is_a_regression():
    assert Verdict((0.1, 0.12, 0.11), 0.1).holds
    assert Verdict((0.125, 0.125, 0.125), 0.1).holds, "the margin"
    assert not Verdict((0.127, 0.126, 0.126), 0.1).holds, "repeats that agree allow no further margin"
    assert Verdict((0.127, 0.1, 0.15), 0.1).holds, "repeats that differ widen the margin"
    assert not Verdict((0.2, 0.15, 0.25), 0.1).holds, "twice the CPU is too much for any spread"
    assert Verdict((0.19, 0.19, 0.19), 0.1, MARGIN_WITH_USER_CODE).holds
    assert not Verdict((0.21, 0.21, 0.21), 0.1, MARGIN_WITH_USER_CODE).holds


def test_the_limit_is_the_stored_ratio_with_the_margin_and_half_of_the_spread():
    verdict = Verdict((0.08, 0.1, 0.12), 0.1)

    assert verdict.noise == pytest.approx(0.2)
    assert verdict.limit == pytest.approx(0.1 * (1 + MARGIN + 0.2))


def test_both_clients_are_measured_alternately_and_divided_run_by_run():
    order = []

    def run_one(cell):
        order.append(cell.row)
        return {"cpu_us": {"aioproducer": 0.5, "aiokafka": 5.0}[cell.row] * len(order)}

    ratios = regression.measured(CASES[0], repeats=2, run_one=run_one)

    assert order == ["aiokafka", "aioproducer", "aioproducer", "aiokafka"]
    assert ratios == pytest.approx([0.1 * 2 / 1, 0.1 * 3 / 4])


def test_every_case_has_a_stored_ratio():
    assert regression.stored().keys() == {case.name for case in CASES}
