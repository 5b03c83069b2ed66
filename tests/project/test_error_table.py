"""docs/error-table.md shows the current error table. `python -m tests.project.test_error_table`
prints it for the guide."""

from __future__ import annotations

import re
from pathlib import Path

from aioproducer.protocol.error_codes import error_name
from aioproducer.protocol.outcomes import TABLE, UNKNOWN_CODES, Action, Failure, Moment, Rule
from aioproducer.types import Outcome

PAGE = Path(__file__).parent.parent.parent / "docs" / "error-table.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"


def lines(name: str, rules: tuple[Rule, ...]) -> list[str]:
    found = []
    for rule in rules:
        conditions = "; ".join(sorted(condition.value for condition in rule.when)) or "else" * (
            len(rules) > 1
        )
        outcome = "may be" if rule.row.outcome is Outcome.UNKNOWN else "no"
        if rule.row.action in (Action.SUCCEED, Action.DUPLICATE):
            outcome = "yes"
        found.append(f"| {name} | {conditions} | {rule.row.action.value} | {outcome} |")
        name = ""
    return found


def table() -> str:
    """Return the whole table in Markdown, one section for each API."""
    head = ["| answer | if | then | persisted |", "|---|---|---|---|"]
    text: list[str] = []
    for api, unknown in UNKNOWN_CODES.items():
        rows = [
            (error_name(key[1]), rules)
            for key, rules in TABLE.items()
            if isinstance(key, tuple) and key[0] is api and (key[1] != 0 or len(rules) > 1)
        ]
        body = [line for name, rules in rows for line in lines(name, rules)]
        title = api.name.replace("_", " ").title().replace(" ", "")
        text += ["", f"## {title}", "", *head, *body, *lines("any other code", unknown)]
    events = (*Failure, *Moment)
    failures = [line for event in events for line in lines(event.value, TABLE[event])]
    text += ["", "## No answer", "", *head, *failures, ""]
    return "\n".join(text)


def shown() -> str:
    page = PAGE.read_text()
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def test_the_guide_shows_the_current_table():
    assert shown().strip() == table().strip()


def test_every_row_of_the_table_is_shown_once():
    rows = re.findall(r"^\| (?!answer|---)", shown(), re.MULTILINE)
    to_be_told = [
        rules
        for key, rules in TABLE.items()
        if not (isinstance(key, tuple) and key[1] == 0 and len(rules) == 1)
    ]

    assert len(rows) == sum(map(len, [*to_be_told, *UNKNOWN_CODES.values()]))


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + table() + page[page.index(END) :])
