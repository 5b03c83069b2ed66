"""Counts phrases that make our prose hard to read, per 10,000 words of each room.

    python -m tests.support.prose [--hits] [aioproducer/network docs ...]

Prose is comments, docstrings, message texts and Markdown without code. The exit status is 1 if a phrase is more
frequent than LIMIT in a part of the project."""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
LIMIT = 2.0
"""Per 10,000 words, as in websockets and psycopg. One hit in a part is always allowed."""
SAMPLES = "test_prose.py"
"""The test file with samples of each phrase, which do not count."""
FEWEST_WORDS = 4
"""String literals with fewer words are names or values, not prose."""

PHRASES: dict[str, re.Pattern[str]] = {
    "nobody, somebody, whoever": re.compile(r"\b(nobody|somebody|whoever|whomever|anybody)\b", re.I),
    "opening": re.compile(r"\A(What|Who|Whom|Whose|Where|That|Of|Whether or)\b"),
    "tell": re.compile(r"\b(tell|tells|told|telling)\b(?![^.]*\bapart)", re.I),
    "stand": re.compile(r"\b(stand|stands|stood|standing)\b(?! for)", re.I),
    "anew": re.compile(r"\banew\b", re.I),
    "is no": re.compile(
        r"(?<!there )\b(is|are|was|were) no (?!longer|more\b|less\b|later\b|earlier\b)[a-z]", re.I
    ),
    "not any more": re.compile(r"\b(not|n't)\b[^.;:]{1,60}\bany more\b", re.I),
    "mend": re.compile(r"\b(mend|mends|mended)\b", re.I),
    "to whom": re.compile(r"\b(by|to|for|of|with) whom\b", re.I),
}

PARTS = [
    *(f"aioproducer/{room}" for room in (
        "blocking", "cli", "compat", "concurrency", "network", "protocol", "records", "security", "sending", "settings",
        "spark", "testing", "transactions",
    )),
    "aioproducer",
    *(f"tests/{room}" for room in (
        "blocking", "cli", "compat", "concurrency", "network", "observe", "project", "protocol",
        "records", "security", "sending", "settings", "spark", "transactions",
    )),
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "tests/campaigns",
    "tools",
    "tests/end_to_end",
    "tests/support",
    "tests/testing",
    "README.md",
    "DESIGN.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]  # fmt: skip
"""Parts of the project, each counted separately; `aioproducer` and `tests` mean only the files directly in them."""


class Prose(NamedTuple):
    """One comment, docstring, message or paragraph."""

    line: int
    text: str
    is_opening: bool = True
    """Whether its opening counts; messages begin in the middle of a sentence."""


class Hit(NamedTuple):
    place: str
    phrase: str
    text: str


class Count(NamedTuple):
    words: int
    hits: list[Hit]

    def excesses(self) -> dict[str, float]:
        """The rates of the phrases above the limit, per 10,000 words."""
        counts = Counter(hit.phrase for hit in self.hits)
        rates = {phrase: 10_000 * count / self.words for phrase, count in counts.items()}
        return {phrase: rate for phrase, rate in rates.items() if rate > LIMIT and counts[phrase] > 1}


def prose_of_python(source: str) -> Iterator[Prose]:
    """Docstrings (including those of fields), comments and message texts."""
    documenting: set[ast.expr] = set()
    for node in ast.walk(ast.parse(source)):  # parents first
        if isinstance(node, ast.Expr):
            documenting.add(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_documentation = node in documenting
            if is_documentation or len(node.value.split()) >= FEWEST_WORDS:
                yield Prose(node.lineno, node.value, is_opening=is_documentation)
    yield from comments_of(source)


def comments_of(source: str) -> Iterator[Prose]:
    """Comments; those on consecutive lines are one."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|fmt:|mypy:|ruff:|!)", token.string):
            continue
        line, text = token.start[0], token.string.lstrip("#! ")
        if block and (line != last + 1 or token.line.strip() != token.string):
            yield Prose(first, " ".join(block))
            block = []
        first = first if block else line
        block.append(text)
        last = line
    if block:
        yield Prose(first, " ".join(block))


def prose_of_cython(source: str) -> Iterator[Prose]:
    """Comments and docstrings; Cython can't be parsed with `ast`."""
    for found in re.finditer(r'"""(.*?)"""', source, re.S):
        if not re.search(r"[{};]\s*$", found[1], re.M):  # verbatim C
            yield Prose(source.count("\n", 0, found.start()) + 1, found[1])
    for number, line in enumerate(source.splitlines(), 1):
        if (comment := re.search(r"(?:^|\s)#\s(.*)", line)) and line.count('"') % 2 == 0:
            yield Prose(number, comment[1], is_opening=line.strip().startswith("#"))


def prose_of_markdown(source: str) -> Iterator[Prose]:
    """Paragraphs, list items and cells without code."""
    source = re.sub(r"^(```|~~~).*?^\1", lambda code: "\n" * code[0].count("\n"), source, flags=re.S | re.M)
    source = re.sub(r"`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", " x ", source)
    for number, line in enumerate(source.splitlines(), 1):
        for text in re.split(r"(?<!\\)\|", line):
            if text := text.strip(" #*->0123456789."):
                yield Prose(number, text, is_opening=False)


BUILT = {".venv", "build"}
"""Directories with files that are not the project's own."""
READERS = {".py": prose_of_python, ".pyx": prose_of_cython, ".pxi": prose_of_cython, ".md": prose_of_markdown}


def files_of(part: str) -> list[Path]:
    path = ROOT / part
    if path.is_file():
        return [path]
    files = path.glob("*") if part in ("aioproducer", "tests") else path.rglob("*")
    return sorted(
        file
        for file in files
        if file.suffix in READERS and not BUILT & set(file.relative_to(ROOT).parts) and file.name != SAMPLES
    )


def count(part: str) -> Count:
    """Count the words and the phrases in one part of the project."""
    words, hits = 0, []
    for file in files_of(part):
        for prose in READERS[file.suffix](file.read_text(encoding="utf-8")):
            words += len(re.findall(r"[A-Za-z']+", prose.text))
            text = " ".join(prose.text.split())
            for phrase, pattern in PHRASES.items():
                if phrase != "opening" or prose.is_opening:
                    place = f"{file.relative_to(ROOT)}:{prose.line}"
                    hits += [Hit(place, phrase, text) for _ in pattern.finditer(text)]
    return Count(max(words, 1), hits)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.prose", description=__doc__.splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", help="directories or files; all of the project by default")
    parser.add_argument("--hits", action="store_true", help="print each phrase with its place")
    arguments = parser.parse_args()
    is_above = False
    for part in arguments.parts or PARTS:
        counted = count(part)
        excesses = counted.excesses()
        is_above |= bool(excesses)
        shown = ", ".join(f"{phrase} {rate:.1f}" for phrase, rate in sorted(excesses.items())) or "ok"
        sys.stdout.write(f"{part:28} {counted.words:6} words  {shown}\n")
        if arguments.hits:
            sys.stdout.writelines(f"  {hit.place}  {hit.phrase}: {hit.text[:100]}\n" for hit in counted.hits)
    return 1 if is_above else 0


if __name__ == "__main__":
    sys.exit(main())
