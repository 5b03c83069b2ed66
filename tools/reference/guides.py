"""Adapts the repository's Markdown for the site: links, hidden code, and tables that have pages of their own.

The guides are also read in the repository, so they link to files outside docs/. On the site, these links lead to the
site's own copies or to the repository."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from tools.reference.markdown import section

ROOT = Path(__file__).parents[2]
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]

COPIES = {
    "DESIGN.md": "design.md",
    "SECURITY.md": "security-guarantees.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
"""Files in the repository that become pages of the site, with the names of these pages."""
PLOTS = "benchmarks/results"

MOVED = {
    (
        "configuration.md",
        "## All settings",
    ): "[Settings](settings.md) lists all settings, with their types, defaults and names in other clients.",
    (
        "prometheus.md",
        "## Metrics",
    ): "[Metrics](metrics.md#exported-metrics) lists all metrics, with their types and labels.",
}
"""Sections whose tables have pages of their own on the site, and the text that replaces each."""

_COMMENT_OR_CODE = re.compile(
    r"<!--.*?-->\n?|^(?P<indent> *)(?P<mark>```+|~~~+).*?^(?P=indent)(?P=mark) *$", re.MULTILINE | re.DOTALL
)
_LIST_INDENT = re.compile(r"^ {2,3}(?=\S)", re.MULTILINE)
"""The indentation of a list item's continuation lines; Python's Markdown requires 4 spaces."""
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def adapted(markdown: str, page: str) -> str:
    """Return the text of a page as the site shows it.

    Raises:
        ValueError: a link leads to a file that does not exist.
    """
    for (name, heading), text in MOVED.items():
        if name == page:
            markdown = markdown.replace(section(markdown, heading), f"\n{text}\n\n")
    return _outside_of_code(markdown, lambda prose: _for_the_site(prose, page))


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a function to the text between code blocks, and leave out comments."""
    parts: list[str] = []
    end = 0
    for found in _COMMENT_OR_CODE.finditer(markdown):
        parts.append(change(markdown[end : found.start()]))
        if not found[0].startswith("<!--"):
            parts.append(found[0])
        end = found.end()
    return "".join([*parts, change(markdown[end:])])


def _for_the_site(prose: str, page: str) -> str:
    sources = {copy: source for source, copy in COPIES.items()}
    folder = posixpath.dirname(sources[page]) if page in sources else "docs"

    def link_for(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found["target"]))
        text = title_of(path) if found["text"] == posixpath.basename(path) else found["text"]
        return f"[{text}]({target_of(path)}{found['anchor'] or ''})"

    def target_of(path: str) -> str:
        if path in COPIES:
            return COPIES[path]
        if path.startswith("docs/"):
            return path.removeprefix("docs/")  # mkdocs checks this link
        if path.startswith(f"{PLOTS}/"):
            return f"results/{posixpath.basename(path)}"
        if not (ROOT / path).exists():
            raise ValueError(f"{page}: a link leads to {path}, which does not exist")
        return f"{SOURCE}/blob/main/{path}"

    # Within code in a table, GitHub needs a backslash before a vertical bar, but Python's Markdown would show it.
    prose = _INLINE_CODE.sub(lambda found: found[0].replace("\\|", "|"), prose)
    return _LIST_INDENT.sub("    ", _LINK.sub(link_for, prose))


def title_of(path: str) -> str:
    """Return the title of a guide (readers of the site do not know its file), or the name of any other file."""
    file = ROOT / path
    if not path.startswith("docs/") or file.suffix != ".md" or not file.exists():
        return posixpath.basename(path)
    return file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
