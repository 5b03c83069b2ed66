"""The fault catalogue: each scenario of the simulation with several seeds, and a check that every id is covered."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns.simulation import play_catalogue
from tests.campaigns.simulation.catalogue import ELSEWHERE, IDS, MISSING
from tests.campaigns.simulation.planted import renumbered_for_new_topic
from tests.campaigns.simulation.play_catalogue import Plays, chosen, play_seed, report
from tests.campaigns.simulation.stage import SCENARIOS, play

TESTS = Path(__file__).parent.parent
SEEDS = (1, 2)

PLAYED = {number for scenario in SCENARIOS for number in scenario.ids}


@pytest.mark.slow
@pytest.mark.promise(
    "Simulation and fuzzing",
    "each fault of the catalogue is played, covered by another test, or known to be missing",
)
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
    assert len(PLAYED) + len(ELSEWHERE) + len(MISSING) == len(IDS), "each id is in exactly one place"


@pytest.mark.parametrize("number", sorted(ELSEWHERE))
def test_each_test_that_plays_an_id_elsewhere_exists(number):
    module, test = ELSEWHERE[number]
    source = (TESTS / f"{module}.py").read_text()

    assert re.search(rf"def {test}\(", source), f"{number}: {module} has no {test}"


def test_most_of_the_catalogue_is_simulated():
    modules = {scenario.play.__module__ for scenario in SCENARIOS}

    assert modules == {module.__name__ for module in play_catalogue.MODULES}
    assert len(PLAYED) >= 114
    assert not MISSING


@pytest.mark.slow
def test_a_scenario_finds_new_numbers_for_a_batch_in_doubt():
    (scenario,) = (one for one in SCENARIOS if one.name == "a_batch_in_doubt_is_in_the_log_of_the_new_topic")

    with renumbered_for_new_topic():
        broken = [play(scenario, seed).broken for seed in SEEDS]

    for sentences in broken:
        assert any(sentence.startswith("nothing_is_there_twice") for sentence in sentences), sentences


@pytest.mark.slow
def test_one_scenario_is_played_with_many_seeds(monkeypatch, capsys):
    command = ["play_catalogue", "--seeds", "3", "--first", "5", "--only", "T18"]
    monkeypatch.setattr(sys, "argv", command)

    assert play_catalogue.main() == 0

    out, error = capsys.readouterr()
    assert "6 of 6 plays: 2 scenarios with 3 seeds" in out  # with transactions v1 and with v2
    assert "findings: 0" in out
    assert len(error.splitlines()) == 3, "one line of progress for each seed"


@pytest.mark.slow
def test_a_finding_names_the_command_that_plays_it_again(monkeypatch, capsys):
    def play_badly(scenario, seed):
        raise ZeroDivisionError

    monkeypatch.setattr(play_catalogue, "play", play_badly)
    plays = Plays()
    plays.add(play_seed(chosen(["T18"]), 5))

    text = report(plays, 2, 1, 1.0)

    assert "findings: 2" in text
    assert "python -m tests.campaigns.simulation.play_catalogue --seeds 1 --first 5 --only T18" in text
    assert "ZeroDivisionError" in text


@pytest.mark.slow
def test_an_id_that_is_not_simulated_is_rejected(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["play_catalogue", "--only", "X1"])

    with pytest.raises(SystemExit):
        play_catalogue.main()

    assert "X1 is not an id of a simulated scenario" in capsys.readouterr().err


@pytest.mark.slow
def test_findings_end_the_command_with_status_1_and_ctrl_c_with_a_report():
    code = (
        "import sys; from tests.campaigns.simulation import play_catalogue as command; "
        "command.play = lambda scenario, seed: 1 / 0; "
        "sys.argv[1:] = ['--seeds', '100000']; sys.exit(command.main())"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    assert command.stderr.readline(), "no progress was reported"
    command.send_signal(signal.SIGINT)
    out, error = command.communicate(timeout=60)

    assert command.returncode == 1
    assert "findings: " in out
    assert "Traceback" not in error
