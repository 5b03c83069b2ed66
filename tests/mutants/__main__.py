"""Changes the modules that decide, one small change at a time, and looks whether their tests notice; exit status 1 if
they notice too little.

    python -m tests.mutants [aioproducer/transaction.py ...]

All of it happens in a copy of the tree that is thrown away. mutants.toml says what is changed and what is run.

A program of our own for the sake of the error table: mutmut 3.8 leaves what stands outside of functions alone, and
properties, and cosmic-ray 8.7 has no change for an entry of a table or a member of an enum."""

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
from typing import NamedTuple

from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.trials import TIMED_OUT

ROOT = Path(__file__).parent.parent.parent
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


class Config(NamedTuple):
    """mutants.toml."""

    modules: list[str]
    suite: list[str]
    most_seconds: float
    least_killed: float
    equivalent: list[Equivalent]

    @classmethod
    def read(cls) -> Config:
        values = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
        return cls(**values | {"equivalent": [Equivalent(**entry) for entry in values["equivalent"]]})


class Fate(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


class Trial:
    """A copy of the tree, and the suite that runs in it."""

    def __init__(self, copy: Path, config: Config) -> None:
        self._copy = copy
        self._config = config
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name)
            else:
                shutil.copy2(ROOT / name, copy / name)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.trials"],
            cwd=copy,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._process.communicate()

    def source(self, module: str) -> str:
        return (self._copy / module).read_text(encoding="utf-8")

    def original(self) -> float:
        """Run the suite on the originals; how many seconds of processor time it took."""
        sources = {module: self.source(module) for module in self._config.modules}
        for module, source in sources.items():
            # As each mutant is written: without comments.
            (self._copy / module).write_text(ast.unparse(ast.parse(source)), encoding="utf-8")
        fate, took = self._run(self._config.suite)
        for module, source in sources.items():
            (self._copy / module).write_text(source, encoding="utf-8")
        assert fate is Fate.SURVIVED, f"the suite without any change: {fate.value}"
        return took

    def fate(self, module: str, mutant: Mutant) -> Fate:
        """Run the suite on a mutant, the module's own tests first."""
        path = self._copy / module
        own = f"tests/test_{path.stem}.py"
        others = [file for file in self._config.suite if file != own]
        before = self.source(module)
        path.write_text(mutant.source, encoding="utf-8")
        fate, _ = self._run([own])
        if fate is Fate.SURVIVED:
            fate, _ = self._run(others)
        path.write_text(before, encoding="utf-8")
        return fate

    def _run(self, files: Sequence[str]) -> tuple[Fate, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # On a busy machine it takes longer than the processor time, of which most_seconds speaks.
        self._process.stdin.write(json.dumps([6 * self._config.most_seconds, *files]) + "\n")
        self._process.stdin.flush()
        status, took = self._process.stdout.readline().split()
        if int(status) == TIMED_OUT:
            return Fate.TIMED_OUT, float(took)
        return Fate.SURVIVED if int(status) == 0 else Fate.KILLED, float(took)


def counted(module: str, source: str, config: Config) -> list[Mutant]:
    """The mutants of a module without those that do the same as the original."""
    namespace = vars(importlib.import_module(module.removesuffix(".py").replace("/", ".")))
    mutants = list(mutants_of(source, namespace))
    for equivalent in config.equivalent:
        if equivalent.module == module:
            fitting = [mutant for mutant in mutants if equivalent.fits(mutant)]
            assert len(fitting) == 1, f"{len(fitting)} mutants are {equivalent}"
            mutants.remove(fitting[0])
    return mutants


def try_all(module: str, trial: Trial, config: Config) -> bool:
    """All mutants of a module; whether enough of them are killed."""
    began = time.perf_counter()
    fates: Counter[Fate] = Counter()
    mutants = counted(module, trial.source(module), config)
    for number, mutant in enumerate(mutants, 1):
        fate = trial.fate(module, mutant)
        fates[fate] += 1
        if fate is not Fate.KILLED:
            say(f"{module}:{mutant.line} {mutant.where}: {mutant.change} {fate.value}")
        if number % 50 == 0:
            say(f"{module}: {number} of {len(mutants)}, {time.perf_counter() - began:.0f} s")
    share = 100 * (1 - fates[Fate.SURVIVED] / len(mutants))
    counts = ", ".join(f"{fates[fate]} {fate.value}" for fate in Fate)
    say(f"{module}: {len(mutants)} mutants, {counts}: {share:.1f} % of {config.least_killed} %")
    return share >= config.least_killed


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    config = Config.read()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", default=config.modules, help="all of mutants.toml by default")
    modules = parser.parse_args().modules
    with tempfile.TemporaryDirectory() as copy:
        trial = Trial(Path(copy), config)
        took = trial.original()
        say(f"the suite takes {took:.1f} s")
        assert took <= config.most_seconds, f"the suite may take {config.most_seconds} s"
        enough = [try_all(module, trial, config) for module in modules]
        trial.close()
    return 0 if all(enough) else 1


if __name__ == "__main__":
    sys.exit(main())
