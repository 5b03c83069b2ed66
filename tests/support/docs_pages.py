"""Reads the fenced blocks in README.md and in the guides under docs/, with their locations and preceding comments.

docs/README.md has the rules for writers; docs_runner.py runs the blocks."""

from __future__ import annotations

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PARSED = ("toml", "ini", "properties", "json")
"""Languages whose blocks must be well formed."""
NOT_RUN = ("bash", "text", "console", "java", "yaml")
"""Languages whose blocks are not checked."""

_FILE_NAME = re.compile(r"#\s*([\w.-]+\.(?:py|toml|ini|properties|json))\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or code in an HTML comment (`is_hidden`) that no reader sees."""

    page: Path
    line: int
    """The 1-based line number of its first line of code in the page."""
    language: str
    code: str
    is_hidden: bool = False
    not_run: str | None = None
    """The reason why it can't run in the tests, if it can't."""
    is_output: bool = False
    """True if it is the output of the code before it."""

    @property
    def place(self) -> str:
        """The location to show in messages, e.g. docs/testing.md:12."""
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page.as_posix()}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The block's file name: from a first line such as `# app.py`, or generated for a test; otherwise None."""
        named = _FILE_NAME.match(self.code.partition("\n")[0])
        if named:
            return named[1]
        return f"test_line_{self.line}.py" if self.is_test else None

    @property
    def is_test(self) -> bool:
        """Whether pytest finds a test in it."""
        return self.language == "python" and any(
            (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"))
            or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
            for node in self.tree().body
        )

    def tree(self) -> ast.Module:
        """The code as Python reads it, with the page's own line numbers.

        Raises:
            SyntaxError: the code is not valid Python.
        """
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(self.padded(self.code), str(self.page), "exec", flags)
        assert isinstance(tree, ast.Module)
        return tree

    def padded(self, code: str) -> str:
        """Put empty lines before `code`, so that each line has the same number as in the page."""
        return "\n" * (self.line - 1) + code

    def parse(self) -> None:
        """Raise ValueError or SyntaxError if the block is not well formed."""
        match self.language:
            case "python":
                self.tree()
            case "toml":
                tomllib.loads(self.code)
            case "json":
                json.loads(self.code)
            case "ini":
                configparser.ConfigParser(interpolation=None).read_string(self.code)
            case "properties":
                for line in self.code.splitlines():
                    if line.strip() and not re.match(r"\s*([#!]|[\w.\-]+\s*[=:])", line):
                        raise ValueError(f"no property: {line}")


def pages() -> list[Path]:
    """README.md and all guides, in order."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order.

    Raises:
        ValueError: a fence or a comment is not closed, or the language of a block is unknown.
    """
    return list(_blocks(page, page.read_text()))


def _blocks(page: Path, text: str) -> Iterator[Block]:
    lines = text.splitlines()
    at = 0
    said: dict[str, str] = {}
    while at < len(lines):
        line = lines[at]
        at += 1
        if fence := re.match(r"(\s*)(```+|~~~+)\s*([\w-]*)", line):
            indent, mark, language = fence.groups()
            end = _find(page, lines, at, f"{indent}{mark}")
            language = {"py": "python", "": "text", "sh": "bash", "shell": "bash"}.get(language, language)
            if language not in ("python", *PARSED, *NOT_RUN):
                raise ValueError(f"{page.name}:{at}: there is no check for a block of {language!r}")
            yield Block(
                page,
                at + 1,
                language,
                "".join(f"{code.removeprefix(indent)}\n" for code in lines[at:end]),
                not_run=said.get("not run"),
                is_output="output" in said,
            )
            at, said = end + 1, {}
        elif line.strip() == "<!-- python":
            end = _find(page, lines, at, "-->")
            yield Block(
                page, at + 1, "python", "".join(f"{code}\n" for code in lines[at:end]), is_hidden=True
            )
            at = end + 1
        elif comment := re.fullmatch(r"\s*<!--\s*(not run|output)(?::\s*(.*?))?\s*-->\s*", line):
            said = {comment[1]: comment[2] or ""}
        elif line.strip():
            said = {}


def _find(page: Path, lines: list[str], start: int, mark: str) -> int:
    for at in range(start, len(lines)):
        if lines[at].rstrip() == mark:
            return at
    raise ValueError(f"{page.name}:{start}: this is never closed by {mark!r}")
