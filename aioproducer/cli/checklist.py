"""The steps of a check. Each step has passed, has failed or needs attention, and may include advice.

Steps contain text from brokers, so all text is escaped when a step is added."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from aioproducer.cli.exits import ExitCode
from aioproducer.cli.screen import Screen
from aioproducer.errors import escaped

WIDTH = 14
"""The length of the longest step name, in characters."""
LONGEST_TEXT = 4096
"""The maximum length of a line in a step, in characters."""


class Status(StrEnum):
    """How a step ended."""

    PASSED = "passed"
    LOOK = "look"
    """The step passed, but something needs attention."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a check."""

    place: str
    """The heading above the step: an address, a broker or a topic; empty for the check as a whole."""
    name: str
    status: Status
    text: str
    advice: str = ""
    """What to do next; empty if there is nothing to suggest."""


class Checklist:
    """The steps that a check has taken so far. Each step is shown as soon as it is added."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.steps: list[Step] = []
        self.place = ""
        """The heading of the steps that follow."""

    def passed(self, name: str, *lines: str) -> None:
        """Add a step that has passed."""
        self._add(name, Status.PASSED, *lines)

    def look(self, name: str, text: str, advice: str) -> None:
        """Add a step that has passed but needs attention."""
        self._add(name, Status.LOOK, text, advice=advice)

    def failed(self, name: str, text: str, advice: str = "") -> None:
        """Add a step that has failed."""
        self._add(name, Status.FAILED, text, advice=advice)

    def _add(self, name: str, status: Status, *lines: str, advice: str = "") -> None:
        shown = [escaped(line, LONGEST_TEXT) for line in lines]
        step = Step(
            escaped(self.place, LONGEST_TEXT),
            name,
            status,
            "\n".join(shown),
            escaped(advice, LONGEST_TEXT),
        )
        if step.place and (not self.steps or self.steps[-1].place != step.place):
            self._screen.result((step.place, "bold"))
        self.steps.append(step)
        indent = 2 if step.place else 0
        mark, style = {
            Status.PASSED: (self._screen.tick, "green"),
            Status.LOOK: ("!", "yellow"),
            Status.FAILED: (self._screen.cross, "bold red"),
        }[step.status]
        first, *more = shown
        self._screen.result((mark, style), f" {step.name.ljust(WIDTH)} {first}", indent=indent)
        for line in more:
            self._screen.result(line, indent=indent + len(mark) + WIDTH + 2)
        if step.advice:
            self._screen.result(f"{self._screen.arrow} {step.advice}", indent=indent + 2)

    @property
    def failures(self) -> int:
        """The number of steps that failed."""
        return sum(step.status is Status.FAILED for step in self.steps)

    @property
    def code(self) -> ExitCode:
        """The exit code of the check."""
        return ExitCode.FAILED if self.failures else ExitCode.OK

    def finish(self) -> ExitCode:
        """Write the last line, or the JSON, and return the exit code."""
        if self._screen.as_json:
            facts: dict[str, Any] = {
                "steps": [asdict(step) for step in self.steps],
                "exit_code": int(self.code),
            }
            self._screen.json(facts)
        elif self.failures:
            steps = "1 step" if self.failures == 1 else f"{self.failures} steps"
            self._screen.result((f"{self._screen.cross} {steps} failed", "bold red"))
        else:
            self._screen.result((f"{self._screen.tick} all steps passed", "green"))
        return self.code
