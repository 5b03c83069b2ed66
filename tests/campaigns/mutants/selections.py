"""Checks that the quick tests notice what all tests notice. The exit status is 1 if `make test` kills less than 95%
of the mutants that `make test` and `make test-all` kill together.

    python -m tests.campaigns.mutants.selections [--sample 10] [aioproducer/protocol/outcomes.py ...]

Each mutant of the pure modules runs against the test files that import the module and are in the test directory of its
package: first against the tests that `make test` selects, then against the others if the mutant is still alive."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from tests.campaigns.mutants.__main__ import ROOT, Config, Fate, Trial, counted, sampled, say

QUICK, SLOW = "not slow", "slow"
LEAST_SHARE = 95  # percent
MOST_SECONDS = 60  # of processor time, for each mutant and selection


def files_about(module: str) -> list[str]:
    """Return the test files that import a module and are in the test directory of its package."""
    path = Path(module)
    package = ".".join(path.parent.parts)
    imports = re.compile(
        rf"^\s*(from {re.escape(package)}\.{path.stem} import|from {re.escape(package)} import .*\b{path.stem}\b)",
        re.MULTILINE,
    )
    room = ROOT.joinpath("tests", *path.parent.parts[1:])
    return [
        file.relative_to(ROOT).as_posix()
        for file in sorted(room.glob("test_*.py"))
        if imports.search(file.read_text(encoding="utf-8"))
    ]


def is_slow(file: str) -> bool:
    """Return whether a test file has tests that `make test` leaves out."""
    return "mark.slow" in (ROOT / file).read_text(encoding="utf-8")


def compare(module: str, trial: Trial, config: Config, sample: int | None) -> bool:
    """Try the mutants of a module; return whether the quick tests kill enough of the mutants that any test kills."""
    files = files_about(module)
    slow = [file for file in files if is_slow(file)]
    if not slow:
        say(f"{module}: all tests of {len(files)} files are quick")
        return bool(files)
    mutants = sampled(module, counted(module, trial.source(module), config), sample, seed=1)
    quick_tests, slow_tests = ["-m", QUICK, *files], ["-m", SLOW, *slow]
    for tests in quick_tests, slow_tests:
        fate, took = trial.run(tests, MOST_SECONDS)
        assert fate is Fate.SURVIVED, f"{tests} fail without any change ({fate.value})"
        say(f"{module}: {' '.join(tests)} takes {took:.1f} s")
    by_quick = by_slow = 0
    for number, mutant in enumerate(mutants, 1):
        if trial.fate_in(module, mutant, quick_tests, MOST_SECONDS) is not Fate.SURVIVED:
            by_quick += 1
        elif trial.fate_in(module, mutant, slow_tests, MOST_SECONDS) is not Fate.SURVIVED:
            by_slow += 1
            say(f"{module}:{mutant.line} {mutant.where}: {mutant.change} killed by slow tests only")
        if number % 50 == 0:
            say(f"{module}: {number} of {len(mutants)}")
    killed = by_quick + by_slow
    share = 100 * by_quick / killed if killed else 0.0
    say(f"{module}: {len(mutants)} mutants, {by_quick} of {killed} killed by quick tests: {share:.1f}%")
    return share >= LEAST_SHARE


def main() -> int:
    config = Config.read()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", default=config.groups[0].modules)
    parser.add_argument("--sample", type=int, help="at most this many mutants of each module")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as copy:
        trial = Trial(Path(copy))
        enough = [compare(module, trial, config, arguments.sample) for module in arguments.modules]
        trial.close()
    return 0 if all(enough) else 1


if __name__ == "__main__":
    sys.exit(main())
