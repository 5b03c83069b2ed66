"""The fault catalogue: each scenario of the simulation with several seeds, and a list that leaves no id out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation import scenarios_cluster, scenarios_connections, scenarios_transactions
from tests.simulation.catalogue import ELSEWHERE, IDS, MISSING
from tests.simulation.stage import SCENARIOS, play

TESTS = Path(__file__).parent
SEEDS = (1, 2)

PLAYED = {number for scenario in SCENARIOS for number in scenario.ids}


@pytest.mark.parametrize(
    "scenario", SCENARIOS, ids=lambda scenario: f"{'-'.join(scenario.ids)}-{scenario.kind}-{scenario.name}"
)
def test_a_scenario_ends_as_it_should_and_every_promise_is_kept(scenario):
    for seed in SEEDS:
        result = play(scenario, seed)

        assert not result.broken, f"{'/'.join(scenario.ids)} {scenario.name} with seed {seed}: {result}"


def test_each_id_of_the_catalogue_is_played_somewhere_or_known_to_be_missing():
    assert len(IDS) == 202
    assert set(IDS) == PLAYED | ELSEWHERE.keys() | MISSING.keys()
    assert len(PLAYED) + len(ELSEWHERE) + len(MISSING) == len(IDS), "each stands in one place"


@pytest.mark.parametrize("number", sorted(ELSEWHERE))
def test_what_is_played_elsewhere_is_there(number):
    module, test = ELSEWHERE[number]
    source = (TESTS / f"{module}.py").read_text()

    assert re.search(rf"def {test}\(", source), f"{number}: {module} has no {test}"


def test_most_of_the_catalogue_is_simulated():
    modules = {scenario.play.__module__ for scenario in SCENARIOS}

    assert modules == {
        module.__name__ for module in (scenarios_cluster, scenarios_connections, scenarios_transactions)
    }
    assert len(PLAYED) >= 114
    assert not MISSING
