"""The page with all errors, each with its cause (the docstring) and its cure."""

from __future__ import annotations

import inspect

from aioproducer import errors
from aioproducer.errors import DeliveryError, KafkaError, SendManyError
from aioproducer.types import Outcome
from tools.reference.cures import CURES
from tools.reference.markdown import code

FLAGS = {
    "retriable": "the same call may succeed later",
    "requires_abort": "the transaction must be aborted",
    "requires_reinit": "`init_transactions()` must be called, or the producer must be replaced",
    "fatal": "the producer must be replaced",
}
OUTCOMES = {
    Outcome.NOT_PERSISTED: "the record is not in the log",
    Outcome.UNKNOWN: "the record may be in the log",
}
WITH_ANY_OUTCOME = (DeliveryError, SendManyError)


def error_types() -> list[type[KafkaError]]:
    """Return all errors, in the order of the module."""
    return [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, KafkaError) and found.__module__ == errors.__name__
    ]


def cause_of(error: type[KafkaError]) -> str:
    """Return the docstring as Markdown."""
    return inspect.cleandoc(error.__doc__ or "")


def facts_of(error: type[KafkaError]) -> list[str]:
    """Return the facts that apply to all errors of a class, one sentence each."""
    bases = code(*(base.__name__ for base in error.__bases__ if base is not Exception))
    facts = [f"A subclass of {bases}."] if bases else []
    if (outcome := getattr(error, "outcome", None)) is not None and not issubclass(error, WITH_ANY_OUTCOME):
        facts.append(f"Outcome {code(outcome.name)}: {OUTCOMES[outcome]}.")
    facts += [f"{code(name)}: {meaning}." for name, meaning in FLAGS.items() if getattr(error, name)]
    fields = [name for name in inspect.get_annotations(error) if name not in FLAGS]
    if fields:
        facts.append(f"Fields: {code(*fields)}.")
    return facts


def section_for(error: type[KafkaError]) -> str:
    """Return the part of the page about one error."""
    parts = [
        f"## {error.__name__}",
        f"**Cause.** {cause_of(error)}",
        f"**What to do.** {CURES[error.__name__]}",
        " ".join(facts_of(error)),
    ]
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """Return the reference page."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    sections = "\n\n".join(section_for(error) for error in error_types())
    return f"""# Errors

All errors are subclasses of `KafkaError` and can be imported from `aioproducer.errors`. An error that concerns
a record has an `outcome`, which says whether the record may be in the log. [What happens to my record](delivery.md)
describes the outcomes. [The error table](error-table.md) says what the producer does about each broker error code.

```text
{inspect.cleandoc(tree)}
```

{sections}
"""
