"""The code on every page of the documentation works, and the runner that checks this also detects failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import fields

import pytest

from aioproducer.metrics import Distribution, MetricsSnapshot, NodeSnapshot
from tests.conftest import MS
from tests.support import docs_pages, docs_runner

pytestmark = pytest.mark.slow

ROOT = docs_pages.ROOT
NOT_RUN_AT_MOST = 5


def run_page(path, command="run"):
    """Return the exit status of the runner, and its output."""
    runner = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.support.docs_runner", command, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = runner.communicate(timeout=180_000 * MS)
    except BaseException:
        os.killpg(runner.pid, signal.SIGKILL)  # including the tests and brokers that the page started
        runner.communicate()
        raise
    return runner.returncode, told


@pytest.fixture
def page(tmp_path):
    """Write a page; `~~~` stands for a fence."""

    def write(text, name="page.md"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text).replace("~~~", "```"))
        return path

    return write


def page_as_parameter(path):
    code = "".join(block.code for block in docs_pages.blocks_of(path))
    marks = [pytest.mark.apache] if "apache_kafka" in code else []
    marks += [pytest.mark.schema_registry] if "SchemaRegistry()" in code or "schema_registry)" in code else []
    return pytest.param(path.relative_to(ROOT).as_posix(), marks=marks)


@pytest.mark.promise("Coming from other clients", "examples and guides do what they say")
@pytest.mark.parametrize("name", [page_as_parameter(path) for path in docs_pages.pages()])
def test_the_code_of_a_page_works(name):
    status, told = run_page(ROOT / name)

    assert status == 0, told


@pytest.mark.promise("Coming from other clients", "examples and guides do what they say")
def test_only_a_few_blocks_are_not_run_and_each_says_why():
    left_out = {
        block.place: block.not_run
        for page in docs_pages.pages()
        for block in docs_pages.blocks_of(page)
        if block.not_run is not None
    }

    assert len(left_out) <= NOT_RUN_AT_MOST, left_out
    assert all(len(reason) > 5 for reason in left_out.values()), left_out


def test_every_guide_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()

    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name


def test_each_figure_of_the_metrics_is_explained():
    guide = (ROOT / "docs" / "operations.md").read_text()
    rows = "".join(line for line in guide.splitlines() if line.startswith("|"))

    for snapshot in (MetricsSnapshot, NodeSnapshot, Distribution):
        for field in fields(snapshot):
            assert f"`{field.name}`" in rows, field.name


# --------------------------------------------------------------------------------------------------- the runner


def test_blocks_of_a_page_share_their_names_and_one_loop(page):
    path = page("""
        <!-- python
        rows = [b"1", b"2"]
        -->
        ~~~python
        import asyncio

        from aioproducer import Producer

        producer = Producer("kafka-1:9092,kafka-2:9092")
        await producer.start()
        ~~~

        ~~~python
        async def main() -> None:
            for row in rows:
                await producer.send_and_wait("orders", row)
            await producer.close()


        if __name__ == "__main__":
            asyncio.run(main())
        ~~~
        <!-- python
        assert docs.values("orders") == [b"1", b"2"], docs.values("orders")
        -->
    """)

    status, told = run_page(path)

    assert status == 0, told


def test_a_client_that_blocks_does_not_stop_the_cluster(page):
    path = page("""
        ~~~python
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": "localhost:9092"})
        producer.produce("orders", b"7")
        assert producer.flush(20) == 0
        ~~~
        <!-- python
        assert docs.values("orders") == [b"7"]
        -->
    """)

    status, told = run_page(path)

    assert status == 0, told


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n~~~python\nx = 1\nraise KeyError('here')\n~~~\n", 'page.md", line 4, in <module>'),
        ("~~~python\nx = = 1\n~~~\n", "SyntaxError"),
        ("~~~python\nprint(1)\n~~~\n\n<!-- output -->\n\n~~~text\n2\n~~~\n", "the code before it prints"),
        ("~~~toml\na = = 1\n~~~\n", "in the block at"),
        ("~~~ini\nnothing\n~~~\n", "in the block at"),
        ("~~~properties\nlinger.ms 5\n~~~\n", "no property: linger.ms 5"),
        ("~~~json\n{\n~~~\n", "in the block at"),
        ("~~~pyhton\nx = 1\n~~~\n", "there is no check for a block of 'pyhton'"),
        ("~~~python\nx = 1\n", "never closed"),
        ("~~~python\ndef test_it():\n    assert 1 == 2\n~~~\n", "assert 1 == 2"),
        ("~~~python\n# app.py\nimport nothing_of_that_name\n~~~\n", "nothing_of_that_name"),
        ("<!-- python\nassert docs.values('orders') == [b'7']\n-->\n", "KeyError"),
        ("~~~python\nimport asyncio\n\ntask = asyncio.create_task(asyncio.sleep(9))\n~~~\n", "leaves tasks"),
        ("~~~python\nasync def f():\n    pass\n\n\nf()\n~~~\n", "leaves behind"),
        ("<!-- not run: needs AWS -->\n\n~~~python\nx = = 1\n~~~\n", "SyntaxError"),
    ],
)
def test_a_page_with_a_mistake_fails(page, text, problem):
    status, told = run_page(page(text))

    assert status == 1
    assert problem in told


def test_marked_blocks_are_not_run_and_output_may_be_left_out(page):
    path = page("""
        <!-- not run: needs AWS -->

        ~~~python
        raise KeyError
        ~~~

        ~~~python
        print("offset", 17, "of", "orders")
        ~~~

        <!-- output -->

        ~~~text
        offset ... of orders
        ~~~

        ~~~bash
        rm -rf everything
        ~~~
    """)

    status, told = run_page(path)

    assert status == 0, told


def test_files_of_a_page_are_imported_by_its_blocks_and_tests(page):
    path = page("""
        ~~~python
        # orders_service.py
        ADDRESS = "localhost:9092"
        ~~~

        ~~~toml
        # settings.toml
        servers = "localhost:9092"
        ~~~

        ~~~python
        import tomllib

        from orders_service import ADDRESS

        with open("settings.toml", "rb") as settings:
            assert tomllib.load(settings)["servers"] == ADDRESS == docs.cluster.bootstrap_servers
        ~~~

        ~~~python
        from orders_service import ADDRESS

        from aioproducer import Producer


        async def test_address():
            async with Producer(ADDRESS) as producer:
                await producer.send_and_wait("orders", b"7")
        ~~~
    """)

    status, told = run_page(path)

    assert status == 0, told
    assert "1 passed" in told


def test_other_ports_are_not_replaced_unless_they_are_configured():
    runner = docs_runner.Docs.__new__(docs_runner.Docs)
    runner.addresses = {"kafka:9093": "127.0.0.1:1"}
    runner.cluster = type("Cluster", (), {"bootstrap_servers": "127.0.0.1:2"})

    told = runner.with_addresses(
        "'a:9092,b:9092' '10.0.0.1:9092' 'kafka:9093' 'localhost:9999' '::1' x[1:9092]"
    )

    assert told == "'127.0.0.1:2' '127.0.0.1:2' '127.0.0.1:1' 'localhost:9999' '::1' x[1:9092]"


def test_types_are_checked_and_an_error_has_the_line_of_the_page(page, tmp_path, capfd):
    path = page("# Title\n\n~~~python\nfrom aioproducer import Producer\n\nProducer(linger_ms='5')\n~~~\n")

    status = docs_runner.check(tmp_path / "extracted", [path])

    assert status == 1
    assert "page_page.py:6: error: Argument" in capfd.readouterr().out


def test_two_pages_must_not_have_files_with_the_same_name(page, tmp_path):
    pages = [page("~~~python\n# app.py\nx = 1\n~~~\n", name) for name in ("a.md", "b.md")]

    with pytest.raises(ValueError, match=r"b\.md:2: another page has a file app\.py"):
        docs_runner.extract(tmp_path / "extracted", pages)
