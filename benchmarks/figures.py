"""The results of one cell, and how figures are formatted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from job import Job
from plan import Cell


@dataclass
class Figures:
    """All results of one cell. A cell with a failure does not show a figure."""

    cell: Cell
    results: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def counts(self) -> bool:
        return bool(self.results) and not self.failures

    def all(self, name: str) -> list[float]:
        return [float(result[name]) for result in self.results]

    def median(self, name: str) -> float:
        return statistics.median(self.all(name))

    def spread(self, name: str) -> str:
        """Format the median, the minimum and the maximum of the repeats."""
        found = self.all(name)
        return f"**{number(self.median(name))}** [{number(min(found))}–{number(max(found))}]"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Figures:
        cell = Cell(**{**stored["cell"], "job": Job(**stored["cell"]["job"])})
        return cls(cell, stored["results"], stored["failures"])


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def rate(value: float) -> str:
    return f"{value / 1e6:.2f}M/s" if value >= 1e6 else f"{value / 1e3:.3g}k/s"


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
