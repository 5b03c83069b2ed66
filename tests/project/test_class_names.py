"""Each class of the package has a unique name, so a name in a traceback, a log or a search means only one class."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from tests.project.test_layering import PACKAGE

COMPILED = (".pyi", ".pyx", ".pxi")
"""The files of a compiled module. A class that is in several of them counts as one class."""

BLOCKING = "public: aioproducer.blocking has the names of aioproducer"
AIOKAFKA = "public: aiokafka's name in aioproducer.compat.aiokafka"
SHARED: dict[str, str] = {
    "BatchBuilder": AIOKAFKA,
    "Delivery": BLOCKING,
    "InvalidTopicError": AIOKAFKA,
    "KafkaTimeoutError": AIOKAFKA,
    "Producer": "public: aioproducer.blocking and aioproducer.compat.confluent have the name of aioproducer",
    "Receipt": BLOCKING,
    "RecordMetadata": AIOKAFKA,
    "RequestTimedOutError": AIOKAFKA,
    "TransactionScope": BLOCKING,
    "UnsupportedSaslMechanismError": AIOKAFKA,
    "UnsupportedVersionError": AIOKAFKA,
}
"""The names that several classes have, each with the reason."""


def names_in(source: str) -> set[str]:
    """The names of the classes at module level."""
    return set(re.findall(r"^(?:cdef )?class (\w+)", source, re.M))


def sources() -> dict[str, str]:
    """The source of each module; a compiled module is the text of all its files."""
    found: dict[str, str] = defaultdict(str)
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix == ".py":
            found[str(path.relative_to(PACKAGE))] = path.read_text()
        elif path.suffix in COMPILED:
            found[f"{path.parent.relative_to(PACKAGE)}/*.pyx"] += path.read_text()
    return found


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of classes in more than one module, with these modules."""
    modules: dict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for name in names_in(source):
            modules[name].append(module)
    return {name: places for name, places in modules.items() if len(places) > 1}


def test_the_name_of_a_class_is_unique_unless_there_is_a_reason():
    found = shared_names(sources())

    unexplained = {name: modules for name, modules in found.items() if name not in SHARED}
    assert unexplained == {}, "rename the class that is private to its room, or add the reason to SHARED"
    assert set(SHARED) - set(found) == set(), "remove names from SHARED that are unique now"


def test_each_shared_name_is_public_where_its_reason_says_so():
    places = shared_names(sources())

    for name, reason in SHARED.items():
        room = "compat/aiokafka/" if reason == AIOKAFKA else "blocking/"
        assert [place.startswith(room) for place in places[name]].count(True) == 1, name


def test_a_name_in_two_modules_is_found():
    twins = {
        "a.py": "class One:\n    class Inner: ...\nclass Two(Base): ...\n",
        "b.py": "class Two: ...\nclass Inner: ...\n",
        "c/*.pyx": "cdef class One:\n    pass\n# class Two\n",
    }

    assert shared_names(twins) == {"One": ["a.py", "c/*.pyx"], "Two": ["a.py", "b.py"]}


def test_a_compiled_module_has_the_classes_of_all_its_files():
    names = names_in(sources()["records/*.pyx"])

    assert {"Delivery", "Rows", "Buffer"} <= names
