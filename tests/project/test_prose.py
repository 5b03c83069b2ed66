"""Comments, docstrings, messages and documents are plain English, as far as a program can measure it."""

from __future__ import annotations

import pytest

from tests.support import prose
from tests.support.prose import (
    PARTS,
    Count,
    Hit,
    prose_of_cython,
    prose_of_markdown,
    prose_of_python,
)

PYTHON = '''"""What the module does."""

LIMIT = 3
"""Of what there may be."""


def send():
    """Send it."""
    # Nobody waits for this one,
    # and it stands here.
    name = "two words"
    raise ValueError(f"this topic is no topic name of ours: {name}")  # told
'''

CYTHON = '''cdef int count    # how many nobody has told
cdef extern from *:
    """
    static void what(void) { return; }
    """
cdef int found():
    """Where it stands."""
    text = "# no comment"
'''


def phrases_of(found):
    return [
        (one.line, phrase)
        for one in found
        for phrase, pattern in prose.PHRASES.items()
        if pattern.search(one.text) and (phrase != "opening" or one.is_opening)
    ]


def test_prose_of_python_is_docstrings_comments_and_messages():
    assert sorted(phrases_of(prose_of_python(PYTHON))) == [
        (1, "opening"),
        (4, "opening"),
        (9, "nobody, somebody, whoever"),
        (9, "stand"),
        (12, "is no"),
        (12, "tell"),
    ]


def test_prose_of_cython_is_docstrings_and_comments():
    assert sorted(phrases_of(prose_of_cython(CYTHON))) == [
        (1, "nobody, somebody, whoever"),
        (1, "tell"),
        (7, "opening"),
        (7, "stand"),
    ]


def test_prose_of_markdown_has_no_code():
    text = "# Title\n\nIt `tells` what [stands](#told)\n\n```python\n# nobody\n```\n\n| made | anew |\n"

    assert phrases_of(prose_of_markdown(text)) == [(3, "stand"), (9, "anew")]


@pytest.mark.parametrize(
    "sentence",
    [
        "there is no memory",
        "it is no longer there",
        "0 stands for all",
        "an outstanding answer",
        "it tells them apart",
    ],
)
def test_usual_english_is_not_counted(sentence):
    assert phrases_of(prose_of_python(f'"""It says: {sentence}."""')) == []


def test_one_hit_is_allowed_and_more_only_in_a_long_text():
    hit = Hit("file:1", "tell", "told")

    assert Count(100, [hit]).excesses() == {}
    assert Count(100, [hit, hit]).excesses() == {"tell": 200.0}
    assert Count(10_000, [hit, hit]).excesses() == {}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_plain_english(part):
    assert not prose.count(part).excesses(), "python -m tests.support.prose --hits shows the places"
