"""Counts phrases that make our prose hard to read, per 10,000 words of each part of it.

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
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
LIMIT = 2.0
"""Per 10,000 words, as in websockets and psycopg. One hit in a part is always allowed."""
OPENING = "opening"
SAMPLES = "tests/project/test_prose.py"
"""The test file with samples of each phrase, which do not count."""
PRINTED = "benchmarks/RESULTS.md"
"""The file with the figures that benchmarks/report.py prints. Its prose comes from REMARKS.md, which counts."""
FEWEST_WORDS = 4
"""String literals with fewer words are names or values, not prose."""

PHRASES: dict[str, re.Pattern[str]] = {
    "nobody, somebody, whoever": re.compile(r"\b(nobody|somebody|whoever|whomever|anybody)\b", re.I),
    "who asks": re.compile(r"\bwho asks?\b|[;:] who [a-z]+\b(?![^.;]*\?)"),
    "to whom": re.compile(r"\b(by|to|for|of|with) whom\b", re.I),
    "tell": re.compile(r"\b(tell|tells|told|telling)\b(?![^.]*\bapart)", re.I),
    "stand": re.compile(r"\b(stand|stands|stood|standing)\b(?! for)", re.I),
    "holds a": re.compile(r"\bholds (an?|no|nothing|none|all|what|its|\d+)\b(?! lock)", re.I),
    "anew": re.compile(r"\banew\b", re.I),
    "is no": re.compile(
        r"(?<!there )\b(is|are|was|were) no (?!longer|more\b|less\b|later\b|earlier\b)[a-z]", re.I
    ),
    "is none": re.compile(r"(?<![Tt]here )\b(is|are|was|were) none\b"),
    "also not": re.compile(r"\balso not\b", re.I),
    "not any more": re.compile(r"(\bnot|n't)\b[^.;:]{1,60}\bany more\b", re.I),
    "one time": re.compile(r"(?<!at )\bone time\b", re.I),
    "mend": re.compile(r"\b(mend|mends|mended|mending)\b", re.I),
    "refuse": re.compile(r"\brefus(e|es|ing|al|als)\b|\b(is|are|was|were|be|been) refused\b"),
    "give up": re.compile(r"\b(give|gives|gave|given|giving) up\b", re.I),
    "believe": re.compile(r"\bbelie(ve|ves|ved)\b", re.I),
    "in vain": re.compile(r"\bin vain\b", re.I),
    "fate": re.compile(r"\bfates?\b", re.I),
}


class Kind(Enum):
    """The kinds of prose, which differ in which opening words are counted."""

    DOCSTRING = "docstring"
    COMMENT = "comment"
    MESSAGE = "message"
    HEADING = "heading"
    PARAGRAPH = "paragraph"


OPENINGS: dict[Kind, re.Pattern[str]] = {
    Kind.DOCSTRING: re.compile(
        r"\A(What|Who|Whoever|Whom|Whose|Where|That|Of|As|Whether or|It|Its|They|Their|Them|He|His|She|Her)\b"
    ),
    Kind.COMMENT: re.compile(r"\A(What|Who|Whom|Whose|Where|That|Of|Whether or)\b"),
    # Each sentence has an opening. "What is X?", "That topic is new" and "Of 100 records, 3 failed" are normal English.
    Kind.PARAGRAPH: re.compile(
        r"(?:\A|(?<=[.!?] ))"
        r"(What|Who|Whom|Whose|Where|That (?:an?|the|its?|their|they|there|no|all|each)|Of(?! \d)|Whether or)\b"
        r"(?![^.!?]*\?)"
    ),
}
"""The opening words that are counted in each kind of prose. There are none for messages, which begin in mid-sentence,
or for headings, which may name a question."""
AROUND = 60
"""The number of characters that are shown before and after a phrase."""


class Prose(NamedTuple):
    """One comment, docstring, message or paragraph."""

    line: int
    text: str
    kind: Kind

    def phrases(self) -> Iterator[tuple[str, str]]:
        """The name of each phrase that the text contains, with the text around it."""
        text = " ".join(self.text.split())
        patterns = [*PHRASES.items(), *((OPENING, OPENINGS[kind]) for kind in OPENINGS if kind is self.kind)]
        for phrase, pattern in patterns:
            for found in pattern.finditer(text):
                yield phrase, text[max(0, found.start() - AROUND) : found.end() + AROUND]


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


# ------------------------------------------------------------------------------------------------------ the readers


def prose_of_python(source: str) -> Iterator[Prose]:
    """Docstrings (including those of fields), comments and message texts."""
    documenting: set[ast.expr] = set()
    pieces: set[ast.expr] = set()
    for node in ast.walk(ast.parse(source)):  # parents first
        if isinstance(node, ast.Expr):
            documenting.add(node.value)
        if isinstance(node, ast.JoinedStr):
            pieces.update(node.values)
        if not isinstance(node, ast.expr) or not (text := text_of(node)) or node in pieces:
            continue
        if node in documenting:
            yield Prose(node.lineno, text, Kind.DOCSTRING)
        elif len(text.split()) >= FEWEST_WORDS:
            yield Prose(node.lineno, text, Kind.MESSAGE)
    yield from comments_of(source)


def text_of(node: ast.AST) -> str:
    """The text of a string, with an x for each value in an f-string; empty for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) or "x" for value in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def comments_of(source: str) -> Iterator[Prose]:
    """Comments; those on consecutive lines are one."""
    lines = (
        (token.start[0], token.string, token.line.strip() == token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    return blocks_of(lines)


def blocks_of(comments: Iterator[tuple[int, str, bool]]) -> Iterator[Prose]:
    """Join comments on consecutive lines: their numbers, their texts with the #, and whether the line has no code."""
    block: list[str] = []
    first = last = 0
    for line, comment, is_whole in comments:
        if re.match(r"#\s*(noqa|type:|fmt:|mypy:|ruff:|!)", comment):
            continue
        if block and (line != last + 1 or not is_whole):
            yield Prose(first, " ".join(block), Kind.COMMENT)
            block = []
        first = first if block else line
        block.append(comment.lstrip("#! "))
        last = line
    if block:
        yield Prose(first, " ".join(block), Kind.COMMENT)


def prose_of_cython(source: str) -> Iterator[Prose]:
    """Comments and docstrings; Cython can't be parsed with `ast`."""
    for found in re.finditer(r'"""(.*?)"""', source, re.S):
        if not re.search(r"[{};]\s*$", found[1], re.M):  # verbatim C
            yield Prose(source.count("\n", 0, found.start()) + 1, found[1], Kind.DOCSTRING)
    yield from prose_of_hashes(source)


def prose_of_hashes(source: str) -> Iterator[Prose]:
    """Comments of a Makefile, a TOML file or another file in which # begins them."""
    return blocks_of(
        (number, comment[1], line.strip() == comment[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (comment := re.match(r'(?:[^"]|"[^"]*")*?(?:^|(?<=\s))(#\s.*)', line))
    )


YAML_TEXT = re.compile(
    r"^(?P<indent> *)(?:- )?(?:about|description|label|summary):[ ]+"
    r"(?:[>|]-?(?P<folded>(?:\n(?P=indent) .*)+)|(?P<plain>.*))",
    re.M,
)


def prose_of_yaml(source: str) -> Iterator[Prose]:
    """Comments, and the values of keys that people read."""
    for found in YAML_TEXT.finditer(source):
        text = found["folded"] or found["plain"]
        yield Prose(source.count("\n", 0, found.start()) + 1, text.strip(" \n\"'"), Kind.MESSAGE)
    yield from prose_of_hashes(source)


C_TOKEN = re.compile(
    r"""
    "(?:\\.|[^"\\\n])*"          # a string
    | '(?:\\.|[^'\\\n])*'        # a character
    | /\*(?P<block>.*?)\*/
    | //(?P<line>[^\n]*)
    """,
    re.S | re.X,
)


def prose_of_c(source: str) -> Iterator[Prose]:
    """Comments."""
    for found in C_TOKEN.finditer(source):
        if text := found["block"] or found["line"]:
            text = re.sub(r"^[ *]+", "", text, flags=re.M)
            yield Prose(source.count("\n", 0, found.start()) + 1, text, Kind.COMMENT)


def prose_of_markdown(source: str) -> Iterator[Prose]:
    """Headings, paragraphs, list items and cells without code."""
    hidden = r"^[ >]*(```|~~~).*?^[ >]*\1[^\n]*|<!--.*?-->"
    source = re.sub(hidden, lambda code: "\n" * code[0].count("\n"), source, flags=re.S | re.M)
    block: list[str] = []
    first = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        text = line.strip(" >")
        begins = not text or text.startswith(("#", "|")) or re.match(r"([-*+]|\d+\.) ", text)
        if block and begins:
            paragraph = without_code(" ".join(block))
            is_title = re.fullmatch(r"[^.!?:]*:", paragraph)
            yield Prose(first, paragraph, Kind.HEADING if is_title else Kind.PARAGRAPH)
            block = []
        if text.startswith("#"):
            yield Prose(number, without_code(text), Kind.HEADING)
        elif text.startswith("|"):
            cells = re.split(r"(?<!\\)\|", without_code(text))
            yield from (Prose(number, cell.strip(), Kind.PARAGRAPH) for cell in cells if cell.strip(" :-"))
        elif text:
            first = first if block else number
            block.append(text)


def without_code(text: str) -> str:
    """Replace code, link targets and tags; remove list markers and emphasis."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " x ", text)
    return re.sub(r"\A([-*+#]+|\d+\.) +|\*", "", text)


Reader = Callable[[str], Iterator[Prose]]
READERS: dict[str, Reader] = {
    ".py": prose_of_python,
    ".pyi": prose_of_python,
    ".pyx": prose_of_cython,
    ".pxi": prose_of_cython,
    ".c": prose_of_c,
    ".h": prose_of_c,
    ".md": prose_of_markdown,
    ".toml": prose_of_hashes,
    ".yml": prose_of_yaml,
    ".yaml": prose_of_yaml,
    "Makefile": prose_of_hashes,
}
"""The reader for each file, by the suffix of its name, or by the name itself if it has no suffix."""
BUILT = {".venv", "__pycache__", "build"}
"""Directories with files that are not the project's own."""


def reader_of(file: Path) -> Reader | None:
    """The reader for a file, or None if the file does not count."""
    path = file.relative_to(ROOT)
    is_compiled = file.suffix == ".c" and file.with_suffix(".pyx").exists()
    if BUILT & set(path.parts) or is_compiled or path.as_posix() in (SAMPLES, PRINTED):
        return None
    return READERS.get(file.suffix or file.name)


# -------------------------------------------------------------------------------------------------------- the parts

ROOMS = ("aioproducer", "tests")
"""Directories whose folders are separate parts; the name of such a directory means only the files directly in it."""


def folders(room: str) -> list[str]:
    """The folders of a room that contain files to read."""
    found = sorted(path for path in (ROOT / room).iterdir() if path.is_dir() and path.name not in BUILT)
    return [f"{room}/{path.name}" for path in found if files_of(f"{room}/{path.name}")]


def files_of(part: str) -> list[Path]:
    """The files to read in one part: a file, or a directory with its subdirectories."""
    path = ROOT / part
    if path.is_file():
        return [path] if reader_of(path) else []
    files = path.glob("*") if part in ROOMS else path.rglob("*")
    return sorted(file for file in files if file.is_file() and reader_of(file))


PARTS = [
    *(part for room in ROOMS for part in (*folders(room), room)),
    ".github",
    "benchmarks",
    "changelog.d",
    "docs",
    "examples",
    "tools",
    ".readthedocs.yaml",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "DESIGN.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "mkdocs.yml",
    "pyproject.toml",
    "pyspark_aioproducer.py",
    "setup.py",
]
"""Parts of the project, each counted separately."""


def count(part: str) -> Count:
    """Count the words and the phrases in one part of the project."""
    words, hits = 0, []
    for file in files_of(part):
        reader = reader_of(file)
        assert reader, f"there is no reader for {file}"
        for prose in reader(file.read_text(encoding="utf-8")):
            words += len(re.findall(r"[A-Za-z']+", prose.text))
            place = f"{file.relative_to(ROOT)}:{prose.line}"
            hits += [Hit(place, phrase, text) for phrase, text in prose.phrases()]
    return Count(max(words, 1), hits)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.prose", description=__doc__.splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", help="directories or files; the whole project by default")
    parser.add_argument("--hits", action="store_true", help="print each phrase and where it occurs")
    arguments = parser.parse_args()
    is_above = False
    for part in arguments.parts or PARTS:
        counted = count(part)
        excesses = counted.excesses()
        is_above |= bool(excesses)
        shown = ", ".join(f"{phrase} {rate:.1f}" for phrase, rate in sorted(excesses.items())) or "ok"
        sys.stdout.write(f"{part:28} {counted.words:6} words  {shown}\n")
        if arguments.hits:
            sys.stdout.writelines(f"  {hit.place}  {hit.phrase}: {hit.text}\n" for hit in counted.hits)
    return 1 if is_above else 0


if __name__ == "__main__":
    sys.exit(main())
