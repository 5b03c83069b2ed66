"""DESIGN.md and README.md keep their word: each test that is named exists, each example runs or at least compiles."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import pytest

from aioproducer.testing import EmbeddedCluster

ROOT = Path(__file__).parent.parent.parent


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", text))


def existing_tests() -> set[str]:
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


def test_every_test_that_the_design_names_exists():
    named = names_in((ROOT / "DESIGN.md").read_text())

    assert len(named) > 100, "the map of promises to tests is part of DESIGN.md"
    assert named - existing_tests() == set()


def test_a_name_that_does_not_exist_is_found_out():
    assert names_in("`test_that_is_not_there`") - existing_tests() == {"test_that_is_not_there"}


def test_every_promise_of_the_map_has_a_test():
    map_of_promises = (ROOT / "DESIGN.md").read_text().split("## 7. ")[1]
    rows = [line for line in map_of_promises.splitlines() if line.startswith("|")][2:]

    assert rows
    for row in rows:
        assert names_in(row), f"no test stands for: {row}"


def examples_in(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples_in("README.md"))))
def test_examples_of_the_readme_compile(number):
    code = examples_in("README.md")[number]

    assert compile(code, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def test_first_example_of_the_readme_runs(capsys):
    code = examples_in("README.md")[0].replace("asyncio.run(main())", "")
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        names: dict = {}
        exec(code.replace("localhost:9092", cluster.bootstrap_servers), names)
        await names["main"]()

        assert [record.value for record in cluster.records("orders")] == [b'{"item": 7}', b'{"item": 8}']
    assert capsys.readouterr().out == "orders 0 0\n"


async def test_the_readmes_example_of_a_test_passes():
    names: dict = {}
    exec(next(code for code in examples_in("README.md") if "EmbeddedCluster" in code), names)

    await asyncio.wait_for(names["test_orders_are_written"](), 10)
