"""The pages about the public names; mkdocstrings fills them with signatures and docstrings."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from tools.reference.errors import error_types
from tools.reference.metrics import SNAPSHOTS

ROOT = Path(__file__).parents[2]


class Page(NamedTuple):
    """A page about the public names of one module."""

    file: str
    module: str
    first: tuple[str, ...] = ()
    """Names that come first; the others follow in alphabetical order."""
    source: str = ""
    """The module that defines the names, if `module` only re-exports them."""
    note: str = ""
    elsewhere: tuple[str, ...] = ()
    """Names that another page describes."""


PAGES = (
    Page(
        "api.md",
        "aioproducer",
        ("Producer", "Delivery", "RecordMetadata", "Receipt", "Outcome", "CloseReport"),
        note="[Errors](errors.md) and [metrics](metrics.md) have their own pages.",
    ),
    Page("api-blocking.md", "aioproducer.blocking", ("Producer", "Delivery")),
    Page("api-testing.md", "aioproducer.testing", ("EmbeddedCluster", "RecordingProducer", "ApacheKafka")),
    Page("api-spark.md", "aioproducer.spark"),
    Page("api-hooks.md", "aioproducer.hooks", source="aioproducer.observe.hooks"),
    Page("api-prometheus.md", "aioproducer.prometheus", source="aioproducer.observe.prometheus"),
    Page("api-otel.md", "aioproducer.otel", source="aioproducer.observe.otel"),
    Page("api-sasl.md", "aioproducer.sasl"),
    Page("api-token-providers.md", "aioproducer.token_providers"),
    Page(
        "api-aiokafka.md",
        "aioproducer.compat.aiokafka",
        ("AIOKafkaProducer",),
        note="`aioproducer.compat.aiokafka.errors` has the names of `aiokafka.errors`: see "
        "[Coming from aiokafka](from-aiokafka.md#errors). `TopicPartition` and `OffsetAndMetadata` are those of "
        "[aioproducer](api.md).",
        elsewhere=("OffsetAndMetadata", "TopicPartition"),
    ),
    Page("api-confluent.md", "aioproducer.compat.confluent", ("Producer",)),
)
MEMBERS = {"aioproducer.ProducerConfig": ["origin"]}
"""Classes of which only some members are shown. The fields of ProducerConfig are settings and have their own page."""


def public_names(module: str) -> list[str]:
    """Return the `__all__` of a module without importing the module, because the import may need an extra."""
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{module} has no __all__")


def names_on(page: Page) -> list[str]:
    """Return the names that a page describes, in order. Errors and snapshots have pages of their own."""
    elsewhere = {error.__name__ for error in error_types()} | {*SNAPSHOTS, *page.elsewhere}
    names = [name for name in public_names(page.source or page.module) if name not in elsewhere]
    return [*page.first, *(name for name in names if name not in page.first)]


def block_for(name: str) -> str:
    """Return the directive that mkdocstrings replaces with the documentation of a name."""
    members = MEMBERS.get(name)
    return f"::: {name}" + (f"\n    options:\n      members: {members}" if members else "")


def text_of(page: Page) -> str:
    """Return the Markdown of a page."""
    source = page.source or page.module
    blocks = [block_for(f"{source}.{name}") for name in names_on(page)]
    return "\n\n".join([f"# {page.module}", *filter(None, [page.note]), *blocks]) + "\n"
