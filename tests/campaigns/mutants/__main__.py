"""Makes one small change at a time to the modules that make decisions, and checks that their tests fail. The exit
status is 1 if too many changes go unnoticed.

    python -m tests.campaigns.mutants [--sample 10] [--seed 1] [aioproducer/transactions/state.py ...]
    python -m tests.campaigns.mutants.selections

Everything happens in a temporary copy of the tree. mutants.toml lists the modules and their tests.

We use our own program because of the error table: mutmut 3.8 ignores properties and code outside functions, and
cosmic-ray 8.7 can't change an entry in a table or a member of an enum."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.campaigns.mutants.operators import Mutant, mutants_of
from tests.campaigns.mutants.trials import TIMED_OUT

ROOT = Path(__file__).parent.parent.parent.parent
CONFIG = Path(__file__).parent / "mutants.toml"
COPIED = ["aioproducer", "tests", "pyproject.toml", "DESIGN.md"]


class Equivalent(NamedTuple):
    """A mutant that no test can kill."""

    module: str
    where: str
    change: str
    reason: str

    def fits(self, mutant: Mutant) -> bool:
        return (self.where, self.change) == (mutant.where, mutant.change)


class Group(NamedTuple):
    """Modules that are judged by the same tests."""

    modules: list[str]
    suite: list[str]
    most_seconds: float
    """The processor-time limit in seconds, for the unchanged suite and for each mutant."""
    least_killed: float
    sample: int | None = None
    """The number of mutants of each module that are tried, chosen by the seed; None for all."""


class Config(NamedTuple):
    """The content of mutants.toml."""

    groups: list[Group]
    equivalent: list[Equivalent]

    @classmethod
    def read(cls) -> Config:
        values = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
        return cls(
            [Group(**entry) for entry in values["group"]],
            [Equivalent(**entry) for entry in values["equivalent"]],
        )

    @property
    def modules(self) -> list[str]:
        return [module for group in self.groups for module in group.modules]


class Fate(Enum):
    """The result of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


class Trial:
    """A copy of the tree, and the process that runs the suites in it."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name)
            else:
                shutil.copy2(ROOT / name, copy / name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.mutants.trials"],
            cwd=copy,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate()

    def source(self, module: str) -> str:
        return (self._copy / module).read_text(encoding="utf-8")

    def original(self, group: Group) -> float:
        """Run a group's suite on the originals; return how many seconds of processor time it took."""
        sources = {module: self.source(module) for module in group.modules}
        for module, source in sources.items():
            # Written without comments, as all mutants are.
            (self._copy / module).write_text(ast.unparse(ast.parse(source)), encoding="utf-8")
        fate, took = self.run(group.suite, group.most_seconds)
        for module, source in sources.items():
            (self._copy / module).write_text(source, encoding="utf-8")
        assert fate is Fate.SURVIVED, f"the suite fails without any change ({fate.value})"
        return took

    def fate(self, module: str, mutant: Mutant, group: Group) -> Fate:
        """Run the group's suite on a mutant, the module's own tests first, until a test fails or the time is up."""
        path = self._copy / module
        own = Path("tests", *Path(module).parts[1:-1], f"test_{path.stem}").as_posix()
        first = [file for file in group.suite if file.startswith((f"{own}.", f"{own}_"))]
        before = self.source(module)
        path.write_text(mutant.source, encoding="utf-8")
        left = group.most_seconds
        fate = Fate.SURVIVED
        for files in first, [file for file in group.suite if file not in first]:
            if files and fate is Fate.SURVIVED:
                fate, took = self.run(files, left)
                left = max(left - took, 1.0)
        path.write_text(before, encoding="utf-8")
        return fate

    def fate_in(self, module: str, mutant: Mutant, arguments: Sequence[str], seconds: float) -> Fate:
        """Run pytest with these arguments on a mutant."""
        path = self._copy / module
        before = self.source(module)
        path.write_text(mutant.source, encoding="utf-8")
        fate, _ = self.run(arguments, seconds)
        path.write_text(before, encoding="utf-8")
        return fate

    def run(self, arguments: Sequence[str], seconds: float) -> tuple[Fate, float]:
        """Run pytest with these arguments; return the result for the current code and how many seconds it took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([seconds, *arguments]) + "\n")
        self._process.stdin.flush()
        status, took = self._process.stdout.readline().split()
        if int(status) == TIMED_OUT:
            return Fate.TIMED_OUT, float(took)
        return Fate.SURVIVED if int(status) == 0 else Fate.KILLED, float(took)


def counted(module: str, source: str, config: Config) -> list[Mutant]:
    """Return the mutants of a module without those that behave like the original."""
    namespace = vars(importlib.import_module(module.removesuffix(".py").replace("/", ".")))
    mutants = list(mutants_of(source, namespace))
    for equivalent in config.equivalent:
        if equivalent.module == module:
            fitting = [mutant for mutant in mutants if equivalent.fits(mutant)]
            assert len(fitting) == 1, f"{len(fitting)} mutants match {equivalent}"
            mutants.remove(fitting[0])
    return mutants


def sampled(module: str, mutants: Sequence[Mutant], size: int | None, seed: int) -> list[Mutant]:
    """Return `size` of a module's mutants in their original order: always the same ones for a seed and a source."""
    if size is None or size >= len(mutants):
        return list(mutants)
    chosen = Random(f"{module}/{seed}").sample(range(len(mutants)), size)
    return [mutants[index] for index in sorted(chosen)]


def try_module(module: str, trial: Trial, group: Group, mutants: Sequence[Mutant]) -> bool:
    """Try these mutants of a module; return True if enough of them are killed."""
    began = time.perf_counter()
    fates: Counter[Fate] = Counter()
    for number, mutant in enumerate(mutants, 1):
        fate = trial.fate(module, mutant, group)
        fates[fate] += 1
        if fate is not Fate.KILLED:
            say(f"{module}:{mutant.line} {mutant.where}: {mutant.change} {fate.value}")
        if number % 10 == 0:
            say(f"{module}: {number} of {len(mutants)}, {time.perf_counter() - began:.0f} s")
    share = 100 * (1 - fates[Fate.SURVIVED] / len(mutants))
    counts = ", ".join(f"{fates[fate]} {fate.value}" for fate in Fate)
    say(f"{module}: {len(mutants)} mutants, {counts}: {share:.1f}% of {group.least_killed}%")
    return share >= group.least_killed


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    config = Config.read()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "modules", nargs="*", default=config.modules, help="default: all modules in mutants.toml"
    )
    parser.add_argument("--sample", type=int, help="at most this many mutants of each module")
    parser.add_argument("--seed", type=int, default=1, help="the seed that chooses the mutants of a sample")
    arguments = parser.parse_args()
    enough = []
    with tempfile.TemporaryDirectory() as copy:
        trial = Trial(Path(copy))
        for group in config.groups:
            modules = [module for module in group.modules if module in arguments.modules]
            if not modules:
                continue
            say(f"the suite of {', '.join(modules)} takes {trial.original(group):.1f} s")
            for module in modules:
                mutants = counted(module, trial.source(module), config)
                if group.sample is not None:
                    mutants = sampled(module, mutants, group.sample, arguments.seed)
                if arguments.sample is not None:
                    mutants = sampled(module, mutants, arguments.sample, arguments.seed)
                enough.append(try_module(module, trial, group, mutants))
        trial.close()
    return 0 if enough and all(enough) else 1


if __name__ == "__main__":
    sys.exit(main())
