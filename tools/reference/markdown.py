"""Reads and writes the parts of Markdown that the reference pages need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def code(*names: str) -> str:
    """Return names in code style, separated by commas."""
    return ", ".join(f"`{name}`" for name in names if name)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. The cells of `rows` are Markdown, in which only line breaks are replaced."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(cell.split()) for cell in line) + " |" for line in lines)


def section(page: str, heading: str) -> str:
    """Return the text below a heading such as "## All settings", up to the next heading of the same or a higher level.

    Raises:
        ValueError: the page has no such heading.
    """
    found = re.search(rf"^{re.escape(heading)}\n", page, re.MULTILINE)
    if found is None:
        raise ValueError(f"there is no heading {heading!r}")
    level = len(heading) - len(heading.lstrip("#"))
    after = page[found.end() :]
    end = re.search(rf"^#{{1,{level}}} ", after, re.MULTILINE)
    return after[: end.start()] if end else after


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all table rows that begin with code, as in "| `linger_ms` | ... |"."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
