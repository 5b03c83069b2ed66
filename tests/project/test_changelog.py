"""Each fragment of the changelog has a known type, a name that towncrier finds, and a text.

Before the first release, no fragment describes a fix or a change."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAGMENTS = ROOT / "changelog.d"
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
TYPES = [kind["directory"] for kind in TOWNCRIER["type"]]


def problems_of(fragment: Path) -> list[str]:
    """Return the problems of a fragment."""
    name = re.fullmatch(r"(?:[1-9]\d*|\+[\w-]+)\.(\w+)(?:\.\d+)?\.md", fragment.name)
    if name is None:
        return [f"{fragment.name} is not named NUMBER.TYPE.md or +WORD.TYPE.md"]
    problems = []
    if name[1] not in TYPES:
        problems.append(f"{fragment.name}: {name[1]} is not one of the types {', '.join(TYPES)}")
    text = fragment.read_text(encoding="utf-8").strip()
    if not text.endswith(".") or text.startswith(("-", "*", "#")):
        problems.append(f"{fragment.name} does not consist of sentences")
    return problems


def test_each_fragment_has_a_known_type_and_a_sentence():
    assert FRAGMENTS == ROOT / TOWNCRIER["directory"]
    problems = [
        problem
        for fragment in FRAGMENTS.iterdir()
        if fragment.name != "README.md"
        for problem in problems_of(fragment)
    ]

    assert problems == []


def is_released(changelog: str) -> bool:
    """Return True if the heading of a version has a date, as towncrier and docs/releasing.md write it."""
    return re.search(r"^## \S+ \(\d{4}-\d\d-\d\d\)$", changelog, re.MULTILINE) is not None


def of_earlier_versions(fragments: Path) -> list[str]:
    """Return the names of the fragments that compare a version with an earlier one."""
    return sorted(file.name for file in fragments.iterdir() if re.search(r"\.(changed|fixed)\.", file.name))


def test_before_the_first_release_no_fragment_describes_a_fix_or_a_change():
    """No user has seen the behaviour that such a fragment compares with."""
    changelog = (ROOT / TOWNCRIER["filename"]).read_text(encoding="utf-8")

    assert is_released(changelog) or of_earlier_versions(FRAGMENTS) == []


def test_a_dated_heading_is_a_release_and_fixes_and_changes_are_found(tmp_path):
    for name in ("12.fixed.md", "+word.changed.1.md", "12.added.md", "+fixed.added.md", "README.md"):
        (tmp_path / name).write_text("It works now.\n")

    assert of_earlier_versions(tmp_path) == ["+word.changed.1.md", "12.fixed.md"]
    assert is_released("# Changelog\n\n## 0.1.0 (2027-01-31)\n")
    assert not is_released("# Changelog\n\n## 0.1.0 (unreleased)\n")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("12.fix.md", "It works now.", "12.fix.md: fix is not one of the types security,"),
        ("twelve.fixed.md", "It works now.", "twelve.fixed.md is not named"),
        ("12.md", "It works now.", "12.md is not named"),
        ("12.fixed.rst", "It works now.", "12.fixed.rst is not named"),
        ("12.fixed.md", "", "12.fixed.md does not consist of sentences"),
        ("+site.added.md", "- It works now.", "+site.added.md does not consist of sentences"),
    ],
)
def test_an_invalid_fragment_is_found(tmp_path, name, text, problem):
    fragment = tmp_path / name
    fragment.write_text(text)

    [found] = problems_of(fragment)

    assert found.startswith(problem)


def test_several_fragments_of_an_issue_may_have_the_same_type(tmp_path):
    for name in ("12.fixed.md", "12.fixed.1.md"):
        (tmp_path / name).write_text("It works now.\n")

        assert problems_of(tmp_path / name) == []


def test_the_rules_list_the_types():
    rules = (FRAGMENTS / "README.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(\w+)` \|", rules, re.MULTILINE) == TYPES


def test_new_sections_go_above_those_of_earlier_releases():
    changelog = (ROOT / TOWNCRIER["filename"]).read_text(encoding="utf-8")

    before, mark, after = changelog.partition(TOWNCRIER["start_string"])
    assert mark
    assert "## " not in before
    assert after.lstrip().startswith("## ")
