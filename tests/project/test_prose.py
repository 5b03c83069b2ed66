"""Comments, docstrings, messages and documents are plain English, as far as a program can measure it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import prose
from tests.support.prose import (
    OPENING,
    PARTS,
    PHRASES,
    ROOT,
    Count,
    Hit,
    Kind,
    Prose,
    prose_of_c,
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


def tell(name):
    """Its answer."""
    raise ValueError(f"{name} was told {name}")
'''

STUB = '''"""Types of what nobody has told."""

class Queue:
    """What waits."""
    def take(self) -> None: ...  # mended
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

MAKEFILE = """# What `make told` runs,
# and nobody waits for it.
DOCS := build/stands  # anew
told: setup
\techo "# mended" > $@
"""

TOML = """# Whose limits these are
limit = 3  # as nobody told us
text = "# mended, # anew"
"""

YAML = """# Nobody reads this
name: told by nobody at all
groups:
  - alert: Told
    for: 1m # mended
    summary: "{{ $labels.topic }} was told"
    description: >-
      The log
      stands still.
  - label: What was mended
    description: refused by nobody
"""

C = """/* What the file is:
 * it does
 * not any
 * more. */
static const char *text = "/* told */ \\" // told";
int count; // nobody
char quote = '"'; /* mended */
"""

MARKDOWN = """# What happens

It `tells` what [stands](#told), and it is not
used any
more. Where records wait is in `x`. That a topic is
gone is known. Of the rest, some are sent.

```python
# nobody
```

1. Of none
   - it
     stands

       ~~~
       told
       ~~~

<!-- python
print("told")
-->

| made | `anew` | anew |
|---|---|---|
| What takes long is quick | x |
"""


def phrases_of(found):
    return [(one.line, phrase) for one in found for phrase, _ in one.phrases()]


def read(name, source):
    return prose.READERS[Path(name).suffix or name](source)


def test_prose_of_python_is_docstrings_comments_and_messages():
    assert sorted(phrases_of(prose_of_python(PYTHON))) == [
        (1, "opening"),
        (4, "opening"),
        (9, "nobody, somebody, whoever"),
        (9, "stand"),
        (12, "is no"),
        (12, "tell"),
        (16, "opening"),
        (17, "tell"),
    ]


def test_prose_of_a_stub_is_docstrings_and_comments():
    assert sorted(phrases_of(read("queue.pyi", STUB))) == [
        (1, "nobody, somebody, whoever"),
        (1, "tell"),
        (4, "opening"),
        (5, "mend"),
    ]


@pytest.mark.parametrize("name", ["path.pyx", "columns.pxi"])
def test_prose_of_cython_is_docstrings_and_comments(name):
    assert sorted(phrases_of(read(name, CYTHON))) == [
        (1, "nobody, somebody, whoever"),
        (1, "tell"),
        (7, "opening"),
        (7, "stand"),
    ]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        (
            "Makefile",
            MAKEFILE,
            [(1, "nobody, somebody, whoever"), (1, "opening"), (1, "tell"), (3, "anew")],
        ),
        (
            "pyproject.toml",
            TOML,
            [(1, "opening"), (2, "nobody, somebody, whoever"), (2, "tell")],
        ),
    ],
)
def test_prose_of_a_makefile_and_of_toml_is_comments(name, source, expected):
    assert sorted(phrases_of(read(name, source))) == expected


@pytest.mark.parametrize("name", ["mkdocs.yml", "readthedocs.yaml"])
def test_prose_of_yaml_is_comments_and_descriptions(name):
    assert sorted(phrases_of(read(name, YAML))) == [
        (1, "nobody, somebody, whoever"),
        (5, "mend"),
        (6, "tell"),
        (7, "stand"),
        (10, "mend"),
        (11, "nobody, somebody, whoever"),
    ]


@pytest.mark.parametrize("name", ["broker.c", "portable.h"])
def test_prose_of_c_is_comments(name):
    assert sorted(phrases_of(read(name, C))) == [
        (1, "not any more"),
        (1, "opening"),
        (6, "nobody, somebody, whoever"),
        (7, "mend"),
    ]
    assert [one.kind for one in prose_of_c(C)] == [Kind.COMMENT] * 3


def test_prose_of_markdown_has_no_code():
    assert phrases_of(prose_of_markdown(MARKDOWN)) == [
        (3, "stand"),
        (3, "not any more"),
        (3, "opening"),
        (3, "opening"),
        (3, "opening"),
        (12, "opening"),
        (13, "stand"),
        (24, "anew"),
        (26, "opening"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# What happens to a record",
        "Who wrote it? What is a leader?",
        "Records wait. That topic is new.",
        "Of 100 records, 3 failed.",
        "- [What happens](delivery.md)",
        "What is missing:",
        "As in Kafka, it waits.",
    ],
)
def test_usual_openings_of_markdown_are_not_counted(text):
    assert phrases_of(prose_of_markdown(text)) == []


@pytest.mark.parametrize("word", ["What", "Who", "Whoever", "That", "Of", "As", "It", "Its", "They", "Their"])
def test_a_docstring_does_not_begin_with_one_of_these_words(word):
    text = f"{word} records are sent."

    assert (1, OPENING) in phrases_of([Prose(1, text, Kind.DOCSTRING)])
    assert (1, OPENING) not in phrases_of([Prose(1, text, Kind.MESSAGE)])


NAMED = {
    "nobody, somebody, whoever": ["records that somebody wants", "nobody overtakes", "whoever waits"],
    "who asks": ["the number who ask", "all is atomic; who waits for memory is served"],
    "to whom": ["also by whom it is given away to"],
    "tell": ["what others have told", "an error tells so"],
    "stand": ["they stand in line", "the package as it stands", "it stands in the table"],
    "holds a": ["it holds no records", "which holds what was sent", "a row holds 3 fields"],
    "anew": ["made anew"],
    "is no": ["'or ders' is no topic name"],
    "is none": ["a row that is none", "all others are none of ours"],
    "also not": ["it did not appear, also not after 60 s"],
    "not any more": ["it does not wait any more", "it isn't used any more"],
    "one time": ["sent one time"],
    "mend": ["it is mended", "by mending it"],
    "refuse": ["the broker refuses us", "after a refusal", "a second one is refused"],
    "give up": ["it gives up", "given up", "before giving up"],
    "believe": ["a broker does not believe who we are"],
    "in vain": ["it waits in vain"],
    "fate": ["every key has its fate"],
}
"""Samples of each phrase, most of them from texts of ours that have been rewritten."""


@pytest.mark.parametrize(
    ("phrase", "sample"), [(phrase, sample) for phrase, samples in NAMED.items() for sample in samples]
)
def test_each_phrase_is_counted(phrase, sample):
    assert phrase in [found for found, _ in Prose(1, f"Here, {sample}.", Kind.MESSAGE).phrases()]


def test_each_phrase_has_samples():
    assert list(NAMED) == list(PHRASES)


@pytest.mark.parametrize(
    "sentence",
    [
        "there is no memory",
        "None if there is none",
        "it is no longer there",
        "0 stands for all",
        "an outstanding answer",
        "it tells them apart",
        "connection refused",
        "it holds the lock, while the condition holds",
        "the resources in use at one time",
        "the user, who asked for it",
        "its arguments: who: the connection",
    ],
)
def test_usual_english_is_not_counted(sentence):
    assert phrases_of(prose_of_python(f'"""The text says: {sentence}."""')) == []


def test_one_hit_is_allowed_and_more_only_in_a_long_text():
    hit = Hit("file:1", "tell", "told")

    assert Count(100, [hit]).excesses() == {}
    assert Count(100, [hit, hit]).excesses() == {"tell": 200.0}
    assert Count(10_000, [hit, hit]).excesses() == {}


def test_a_hit_shows_the_text_around_the_phrase():
    text = "a " * 100 + "nobody" + " z" * 100

    ((_, around),) = Prose(1, text, Kind.COMMENT).phrases()

    assert around == "a " * 30 + "nobody" + " z" * 30


# -------------------------------------------------------------------------------------------------------- the parts


def test_each_file_that_can_be_read_is_in_one_part():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = [ROOT / name for name in tracked.splitlines() if (ROOT / name).is_file()]
    expected = {file for file in ours if prose.reader_of(file)}
    found = [file for part in PARTS for file in prose.files_of(part)]

    assert expected - set(found) == set()
    assert len(found) == len(set(found))


def test_each_part_has_files():
    assert [part for part in PARTS if not prose.files_of(part)] == []


@pytest.mark.parametrize("room", prose.ROOMS)
def test_each_folder_of_a_room_is_a_part(room):
    packages = {file.parent.relative_to(ROOT).as_posix() for file in (ROOT / room).glob("*/__init__.py")}

    assert len(packages) > 10
    assert packages <= set(PARTS)


def test_the_samples_compiled_code_and_the_printed_figures_are_not_counted():
    assert prose.reader_of(ROOT / "tests/project/test_prose.py") is None
    assert prose.reader_of(ROOT / "build/site/index.md") is None
    assert prose.reader_of(ROOT / "aioproducer/records/_record_path.c") is None
    assert prose.reader_of(ROOT / "benchmarks/RESULTS.md") is None
    assert prose.reader_of(ROOT / "benchmarks/ack_broker.c") is prose_of_c


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_plain_english(part):
    assert prose.count(part).excesses() == {}, "python -m tests.support.prose --hits shows the places"
