"""The documentation site: its reference lists all that the code has, and a browser loads nothing from other hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer.main

from aioproducer.cli.app import app
from aioproducer.observe.families import FAMILIES
from aioproducer.settings.table import SETTINGS
from tests.support import docs_pages
from tools.reference import api, commands, errors, guides, metrics, settings
from tools.reference.cures import CURES
from tools.reference.markdown import rows_of, section

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text(encoding="utf-8")
PRINTED = {
    "settings.md": lambda: settings.page(CONFIGURATION),
    "metrics.md": metrics.page,
    "errors.md": errors.page,
    "cli-options.md": commands.page,
    **{page.file: lambda page=page: api.text_of(page) for page in api.PAGES},
}

# --------------------------------------------------------------------------------------------------- printed pages


def test_the_navigation_lists_each_page_once():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    guides_of_docs = {path.name for path in DOCS.glob("*.md")} - {"README.md"}

    named = re.findall(r"[\w-]+\.md$", navigation, re.MULTILINE)

    assert sorted(named) == sorted([*guides_of_docs, *PRINTED, *guides.COPIES.values()])


@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_page_has_a_title_and_links_to_existing_pages(name):
    text = PRINTED[name]()

    assert text.startswith("# ")
    pages = {path.name for path in DOCS.glob("*.md")} | set(PRINTED)
    linked = re.findall(r"\]\(([\w-]+\.md)(?:#[^)]*)?\)", text)
    assert set(linked) <= pages
    assert name in ("settings.md", "metrics.md", "errors.md", "cli-options.md") or ":::" in text


def test_the_page_of_settings_explains_each_setting_and_has_all_its_names():
    page = settings.page(CONFIGURATION)

    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(SETTINGS)
    for name, setting in SETTINGS.items():
        part = section(page, f"## {name}")
        assert settings.meanings(CONFIGURATION)[name].replace("(#", "(configuration.md#") in part
        assert setting.value_type.described in part
        assert all(f"`{other}`" in part for other in setting.foreign_names)


def test_the_page_of_metrics_has_the_rows_of_the_guide():
    guide = rows_of(section((DOCS / "prometheus.md").read_text(encoding="utf-8"), "## Metrics"))

    assert rows_of(metrics.page()) == guide
    assert len(guide) == len(FAMILIES)


def test_each_error_has_a_cause_and_a_cure():
    found = errors.error_types()
    page = errors.page()

    assert list(CURES) == [error.__name__ for error in found]
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(CURES)
    for error in found:
        part = section(page, f"## {error.__name__}")
        assert len(errors.cause_of(error)) > 10
        assert "**What to do.**" in part
        assert len(CURES[error.__name__]) > 20


@pytest.mark.parametrize("error", errors.error_types())
def test_a_cure_links_to_headings_that_exist(error):
    for name, anchor in re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", CURES[error.__name__]):
        headings = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{name}#{anchor}"


def test_the_page_of_commands_has_every_option():
    page = commands.page()

    for name, command in typer.main.get_command(app).commands.items():
        part = section(page, f"## aioproducer {name}")
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("-")]
            assert all(re.search(rf"[` ]{re.escape(option)}[`, ]", part) for option in options), (
                parameter.name
            )
            assert commands.escaped(parameter.help) in part


def test_every_public_name_is_on_one_page():
    for page in api.PAGES:
        source = page.source or page.module
        elsewhere = {error.__name__ for error in errors.error_types()} | {*metrics.SNAPSHOTS, *page.elsewhere}
        shown = re.findall(rf"^::: {re.escape(source)}\.(\w+)$", api.text_of(page), re.MULTILINE)

        assert sorted(shown) == sorted(set(api.public_names(source)) - elsewhere)


# --------------------------------------------------------------------------------------------- guides on the site


def test_links_point_to_copies_or_into_the_repository():
    text = (
        "[a](../SECURITY.md#reporting) [b](../examples/service.py) [c](delivery.md#order) [d](https://x.y/z)"
    )

    assert guides.adapted(text, "security.md") == (
        f"[a](security-guarantees.md#reporting) [b]({guides.SOURCE}/blob/main/examples/service.py) "
        "[c](delivery.md#order) [d](https://x.y/z)"
    )


def test_the_name_of_a_guide_is_replaced_by_its_title():
    text = "[delivery.md](delivery.md#order) [alerts.yml](prometheus/alerts.yml) [the runbook](runbook.md)"

    assert guides.adapted(text, "security.md") == (
        "[What happens to my record](delivery.md#order) [alerts.yml](prometheus/alerts.yml) "
        "[the runbook](runbook.md)"
    )


def test_a_vertical_bar_in_the_code_of_a_table_has_no_backslash():
    assert guides.adapted("| `a\\|b` | c\\|d |", "x.md") == "| `a|b` | c\\|d |"


def test_links_of_copies_are_relative_to_their_own_folder():
    assert guides.adapted("![p](results/lag.svg) [m](REMARKS.md)", "benchmarks.md") == (
        f"![p](results/lag.svg) [m]({guides.SOURCE}/blob/main/benchmarks/REMARKS.md)"
    )


def test_a_link_to_a_missing_file_is_an_error():
    with pytest.raises(ValueError, match=r"security\.md: a link leads to nothing\.md, which does not exist"):
        guides.adapted("[a](../nothing.md)", "security.md")


def test_hidden_code_is_left_out_and_code_is_not_changed():
    code = "```python\nx = d[0](../y)  # <!-- python -->\n```\n"
    text = f"a\n<!-- python\nrows = [1]\n\nx\n-->\n{code}<!-- output -->\nb\n"

    assert guides.adapted(text, "x.md") == f"a\n{code}b\n"


def test_content_of_a_list_item_stays_in_it():
    text = "- a\n  b\n\n  | c |\n  |---|\n\n1. d\n   e\n\n```text\n  f\n```\n"

    assert guides.adapted(text, "x.md") == (
        "- a\n    b\n\n    | c |\n    |---|\n\n1. d\n    e\n\n```text\n  f\n```\n"
    )


@pytest.mark.parametrize(("page", "heading"), guides.MOVED)
def test_a_table_that_has_its_own_page_is_replaced_by_a_link(page, heading):
    text = (DOCS / page).read_text(encoding="utf-8")

    shown = guides.adapted(text, page)

    assert guides.MOVED[page, heading] in section(shown, heading)
    assert not rows_of(section(shown, heading).split("\n### ")[0])
    assert len(rows_of(section(text, heading))) > 30


@pytest.mark.parametrize("path", docs_pages.pages(), ids=lambda path: path.name)
def test_links_to_other_sites_are_well_formed(path):
    links = re.findall(r"\]\((\w+:[^)]*)\)", path.read_text(encoding="utf-8"))

    assert all(re.fullmatch(r"https?://[\w.-]+(?::\d+)?(?:/[^\s<>]*)?", link) for link in links), links


# -------------------------------------------------------------------------------------- nothing from other hosts

LOADING = {
    "script": ["src"],
    "img": ["src", "srcset"],
    "iframe": ["src"],
    "source": ["src", "srcset"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "embed": ["src"],
    "object": ["data"],
    "use": ["href", "xlink:href"],
    "form": ["action"],
}
"""The attributes of each element whose addresses a browser loads."""
LINKS = {
    "stylesheet",
    "icon",
    "shortcut",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
ELSEWHERE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
ASKS_A_HOST = 'data-md-component="source"'
"""The element for which the theme's script requests figures from the host of the repository."""


class Loads(HTMLParser):
    """Finds the addresses on other hosts that a browser loads when it shows a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._is_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._is_style = tag == "style"
        wanted = list(LOADING.get(tag, []))
        if tag == "link" and LINKS & set(values.get("rel", "").split()):
            wanted.append("href")
        self.found += [values[name] for name in wanted if ELSEWHERE.match(values.get(name, ""))]
        self.found += loads_of_style(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.found += loads_of_style(data)


def loads_of_style(text: str) -> list[str]:
    """Return the addresses on other hosts that a style sheet loads."""
    addresses = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""", text)
    return [address for address in addresses if ELSEWHERE.match(address)]


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<link rel="preconnect" href="https://fonts.example">',
        "<img src=http://example/a.png>",
        "<style>@import 'https://example/a.css';</style>",
        '<p style="background: url(https://example/a.png)">',
    ],
)
def test_an_address_that_a_browser_loads_is_found(text):
    assert len(Loads(text).found) == 1


def test_addresses_that_are_only_shown_are_not_found():
    text = (
        '<link rel="canonical" href="https://a.example/"><a href="https://a.example/">b</a><img src="c.png">'
    )

    assert Loads(text).found == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, with warnings as errors."""
    place = tmp_path_factory.mktemp("site")
    ready = f"{sys.prefix}/.ready"  # use the current environment
    built = subprocess.run(
        ["make", "docs", f"ARGS=--site-dir {place}", f"VENV={sys.prefix}", "-o", ready],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return place


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first run installs the tools
def test_the_site_loads_nothing_from_other_hosts(site):
    pages = list(site.glob("**/*.html"))
    styles = list(site.glob("**/*.css"))

    assert len(pages) > 60
    assert styles
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert Loads(text).found == [], path
        assert ASKS_A_HOST not in text, path
    for path in styles:
        assert loads_of_style(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_shows_docstrings_has_a_search_and_lists_its_pages(site):
    reference = (site / "api" / "index.html").read_text(encoding="utf-8")
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    listed = (site / "llms.txt").read_text(encoding="utf-8")

    assert 'id="aioproducer.Producer.send_many"' in reference
    assert "Put a record into the buffer and return its delivery." in reference
    assert 'id="aioproducer.RecordMetadata"' in reference
    places = {entry["location"] for entry in index["docs"]}
    assert {"settings/#linger_ms", "errors/#deliveryerror", "runbook/#a-broker-is-slow"} <= places
    assert listed.count("\n- [") == len(list(site.glob("**/index.html")))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_readers_of_the_site_do_not_see_hidden_code(site):
    hidden = [
        line
        for page in docs_pages.pages()
        for block in docs_pages.blocks_of(page)
        if block.is_hidden
        for line in block.code.splitlines()
        if line.startswith("assert docs.")
    ]
    assert len(hidden) > 10

    for path in site.glob("**/*.html"):
        text = path.read_text(encoding="utf-8")
        assert "<!-- python" not in text, path
        assert not [line for line in hidden if line in text], path
