"""Hooks for mkdocs, which add the pages that are not in docs/, adapt the guides, and write llms.txt."""

from __future__ import annotations

import html
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file on its own, not as part of a package

import aioproducer  # noqa: E402

aioproducer.__version__ = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "version"
]
"""The package is imported from the checkout, so its metadata may not exist."""

from tools.reference import api, commands, errors, guides, metrics, settings  # noqa: E402


def printed_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page that is generated from the code."""
    guide = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    yield "settings.md", settings.page(guide)
    yield "metrics.md", metrics.page()
    yield "errors.md", errors.page()
    yield "cli-options.md", commands.page()
    for page in api.PAGES:
        yield page.file, api.text_of(page)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and the plots of the benchmarks."""
    for name, text in printed_pages():
        files.append(File.generated(config, name, content=text))
    for source, name in guides.COPIES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for plot in sorted((ROOT / guides.PLOTS).glob("*.svg")):
        files.append(File.generated(config, f"results/{plot.name}", content=plot.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove what readers of the site do not need, and adapt the links."""
    return guides.adapted(markdown, page.file.src_uri)


_lines: dict[str, str] = {}
"""The line in llms.txt for each page of this build, by the page's path, in the order of the navigation."""


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Replace the lines of an earlier build in this process with an empty line for each page."""
    _lines.clear()
    _lines.update((page.file.src_uri, "") for page in nav.pages)
    return nav


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Store the page's line for llms.txt."""
    paragraph = re.search(r"<p>(.*?)</p>", content, re.DOTALL)
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", paragraph[1])).split()) if paragraph else ""
    sentence = re.split(r"(?<=[.:]) (?=[A-Z])", text)[0].rstrip(":.")
    _lines[page.file.src_uri] = f"- [{page.title}]({page.canonical_url}): {sentence}."
    return content


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt: a list of all pages for programs that read documentation (llmstxt.org)."""
    head = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    text = "\n".join([*head, *_lines.values()]) + "\n"
    (Path(config.site_dir) / "llms.txt").write_text(text, encoding="utf-8")
