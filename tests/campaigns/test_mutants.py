"""Each kind of change that `make mutants` makes, on a line of code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from enum import Enum

import pytest

from tests.campaigns.mutants.__main__ import ROOT, Config, counted, sampled
from tests.campaigns.mutants.operators import mutants_of
from tests.campaigns.mutants.trials import TIMED_OUT

pytestmark = pytest.mark.slow


class Kind(Enum):
    A = "a"
    B = "b"


def changes(source):
    return [mutant.change for mutant in mutants_of(textwrap.dedent(source), {"Kind": Kind})]


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the unit tests notice at least 90% of small changes to the error table, sequencing and "
    "transactions, and at least 85% of a sample for the sender, the answers and the coordinator (`make "
    "mutants`)",
)
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = y < 1", ["y < 1 -> y <= 1", "y < 1 -> y >= 1", "1 -> 2"]),
        ("x = y is None", ["y is None -> y is not None"]),
        ("x = not y", ["not y -> y"]),
        ("x = a and b", ["a and b -> a or b", "a and b -> a", "a and b -> b"]),
        ("x = y + z", ["y + z -> y - z"]),
        ("x = True", ["True -> False"]),
        ("x = Kind.A", ["Kind.A -> Kind.B"]),
        (
            "x = y in (Kind.A, z)",
            ["y in (Kind.A, z) -> y not in (Kind.A, z)", "Kind.A -> (left out)", "z -> (left out)"],
        ),
        (
            "x = {Kind.A: y, Kind.B: z}",
            [
                "Kind.A: y -> (left out)",
                "Kind.A: y -> Kind.A: z",
                "Kind.B: z -> (left out)",
                "Kind.B: z -> Kind.B: y",
            ],
        ),
        ("if x: y()", ["if x -> if True", "if x -> if False"]),
        ("for x in y: z()", ["y -> ()"]),
        ("x = f(y, key=z)", ["key=z -> (left out)"]),
        ("def f():\n    self.x = y\n    g()", ["self.x = y -> pass", "g() -> pass"]),
        ("def f():\n    return x", ["return x -> return None"]),
        ("def f():\n    x += y", ["x += y -> pass", "x += y -> x -= y"]),
        ("def f(x=1):\n    raise y", ["1 -> 2", "raise y -> pass"]),
        (
            "def f():\n    a, b = Kind.A, Kind.B\n    g(a)",
            ["Kind.A -> Kind.B", "Kind.B -> Kind.A", "g(a) -> pass", "a -> Kind.B"],
        ),
        ("def f(x, *more): pass\nf(y, z)", ["z -> (left out)"]),
        ("x: tuple[int, str]", []),
        ("def f():\n    'A docstring.'", []),
    ],
)
def test_code_is_changed_in_each_way_that_a_test_should_notice(source, expected):
    assert changes(source) == expected


def test_a_mutant_is_the_whole_module_with_one_change_and_names_its_place():
    source = "class C:\n    def f(self):\n        return 1 + 2\n"

    mutants = list(mutants_of(source, {}))

    assert {(mutant.line, mutant.where) for mutant in mutants} == {(3, "C.f")}
    assert "class C:\n\n    def f(self):\n        return 1 - 2" in [mutant.source for mutant in mutants]
    assert len({mutant.source for mutant in mutants}) == len(mutants)


def test_members_of_an_enum_are_not_changed():
    assert list(mutants_of("class Kind(Enum):\n    A = 1\n", {"Kind": Kind})) == []


@pytest.mark.parametrize("module", sorted({entry.module for entry in Config.read().equivalent}))
def test_each_excluded_mutant_exists(module):
    source = (ROOT / module).read_text(encoding="utf-8")

    assert len(counted(module, source, Config.read())) > 0  # counted() asserts that each of them exists


@pytest.mark.promise(
    "Simulation and fuzzing",
    "the unit tests notice at least 90% of small changes to the error table, sequencing and "
    "transactions, and at least 85% of a sample for the sender, the answers and the coordinator (`make "
    "mutants`)",
)
def test_a_sample_is_the_same_for_the_same_seed():
    mutants = list(mutants_of("x = [1, 2, 3, 4, 5, 6, 7, 8]", {}))

    first = sampled("m.py", mutants, 3, seed=1)

    assert first == sampled("m.py", mutants, 3, seed=1)
    assert len({mutant.source for mutant in first}) == 3
    assert [mutants.index(mutant) for mutant in first] == sorted(mutants.index(mutant) for mutant in first)
    assert any(sampled("m.py", mutants, 3, seed=seed) != first for seed in range(2, 10))
    assert sampled("m.py", mutants, None, seed=1) == mutants


@pytest.mark.parametrize("group", Config.read().groups, ids=lambda group: group.modules[0])
def test_the_test_files_of_each_suite_exist(group):
    for file in group.suite:
        assert (ROOT / file).is_file(), file
    assert group.most_seconds <= 60


def test_a_trial_that_takes_too_much_processor_time_is_ended(tmp_path):
    (tmp_path / "test_endless.py").write_text("def test_endless():\n    while True: pass\n")
    code = "import sys; from tests.campaigns.mutants.trials import in_a_fork; print(*in_a_fork(3.0, [sys.argv[1]]))"

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "test_endless.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    status, took = done.stdout.split()
    assert int(status) == TIMED_OUT
    assert 2.5 < float(took) < 5
