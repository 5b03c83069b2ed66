"""Runs the code of README.md and of the guides under docs/, and checks it; docs/README.md has the rules for writers.

    python -m tests.support.docs_runner run docs/testing.md     run the blocks of a page in order, then its tests
    python -m tests.support.docs_runner check                   run ruff and mypy on the code of all pages

Each page runs in a separate process. The embedded cluster runs in another thread, so that a client that blocks does
not stop the brokers."""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import gc
import importlib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from aioproducer.protocol.recordbatch import Record
from aioproducer.testing.embedded.embedded_cluster import EmbeddedCluster
from tests.support.docs_pages import ROOT, Block, blocks_of, pages

T = TypeVar("T")

BLOCK_SECONDS = 90
RUFF = ["--isolated", "--select=E9,F,B,UP,ASYNC,I,RUF", "--ignore=F704,F811,RUF100,RUF001,RUF002,RUF003"]
RUFF += ["--target-version=py311", "--line-length=110", "--output-format=concise"]
MYPY = ["--allow-redefinition", "--allow-untyped-defs", "--allow-untyped-calls", "--allow-untyped-decorators"]
MYPY += ["--ignore-missing-imports"]
MYPY += [
    "--disable-error-code=top-level-await",
    "--disable-error-code=syntax",
]  # `async with` outside functions

_ADDRESS = r"(?:[A-Za-z][\w.-]*|\d+(?:\.\d+){3}):\d{4,5}"
_ADDRESSES = re.compile(rf"(?<![\w.-]){_ADDRESS}(?:,\s*{_ADDRESS})*")


class Docs:
    """The cluster behind the addresses that a page names; hidden code of the page uses it as `docs`."""

    def __init__(self) -> None:
        self.cluster = EmbeddedCluster()
        self.addresses: dict[str, str] = {}
        """Other addresses, e.g. "kafka:9093", and their replacements."""
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve()], name="docs-cluster")

    def __enter__(self) -> Docs:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self.cluster.failures:
            raise self.cluster.failures[0]

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await self.cluster.start()
        finally:
            self._ready.set()
        await self._stop.wait()
        await self.cluster.stop()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the cluster's thread, and return its result."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def run(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the cluster's thread, and return its result. Call this in a worker thread: it blocks."""
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result(10)

    def topic(self, name: str, partitions: int) -> None:
        """Create a topic. Topics that are not created here get one partition on their first use."""
        self.call(lambda: self.cluster.create_topic(name, partitions))

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """The records that were written to a topic of the cluster."""
        return self.call(lambda: self.cluster.records(topic, partition))

    def values(self, topic: str) -> list[Any]:
        """The values that were written to a topic; bytes, or None for a tombstone."""
        return [record.value for record in self.records(topic)]

    def with_addresses(self, code: str) -> str:
        """`code` with the addresses of brokers replaced: those in `addresses`, and all with port 9092."""

        def replaced(found: re.Match[str]) -> str:
            text = found[0]
            if text in self.addresses:
                return self.addresses[text]
            return self.cluster.bootstrap_servers if text.endswith(":9092") else text

        return _ADDRESSES.sub(replaced, code)


docs: Docs
"""Declares the `docs` of hidden code for mypy."""


class Page:
    """The blocks of a page, run in order in one namespace and on one event loop."""

    def __init__(self, path: Path, docs: Docs, folder: Path) -> None:
        self._path = path
        self._docs = docs
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__, "docs": docs}
        self._printed = io.StringIO()
        self._modules: list[str] = []
        self._has_tests = False

    async def run(self) -> None:
        """Run all blocks and tests of the page. Errors in its code are raised with a note that says where."""
        await asyncio.sleep(0)
        before = asyncio.all_tasks()
        for block in blocks_of(self._path):
            try:
                async with asyncio.timeout(BLOCK_SECONDS):
                    await self._run_block(block)
            except BaseException as error:
                error.add_note(f"in the block at {block.place}")
                raise
        for module in self._modules:
            importlib.import_module(module)  # unless the page has already imported it
        if left := asyncio.all_tasks() - before:
            raise AssertionError(f"the page leaves tasks behind: {left}")
        if self._has_tests:
            self._run_tests()

    async def _run_block(self, block: Block) -> None:
        block.parse()
        if block.not_run is not None:
            return
        if block.is_output:
            self._compare(block)
        elif block.file_name is not None:
            self._write(block, block.file_name)
        elif block.language == "python":
            await self._execute(block)

    def _write(self, block: Block, name: str) -> None:
        code = self._docs.with_addresses(block.code)
        (self._folder / name).write_text(block.padded(code) if name.endswith(".py") else code)
        importlib.invalidate_caches()
        if block.is_test:
            self._has_tests = True
        elif name.endswith(".py") and name != "conftest.py":
            self._modules.append(name.removesuffix(".py"))

    async def _execute(self, block: Block) -> None:
        tree = _RunsInTheLoop().visit(
            ast.parse(block.padded(self._docs.with_addresses(block.code)), str(block.page))
        )
        ast.fix_missing_locations(tree)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, str(block.page), "exec", flags, dont_inherit=True)
        if not block.is_hidden:
            self._printed.seek(0)
            self._printed.truncate()
        with contextlib.redirect_stdout(self._printed):
            running = eval(code, self._names)
            if running is not None:
                await running

    def _compare(self, block: Block) -> None:
        printed = self._printed.getvalue()
        pattern = ".*?".join(re.escape(part) for part in block.code.rstrip().split("..."))
        if not re.fullmatch(pattern, printed.rstrip(), re.DOTALL):
            raise AssertionError(f"the page says:\n{block.code}\nbut the code before it prints:\n{printed}")

    def _run_tests(self) -> None:
        options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", ".", "--tb=short"]
        settings = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *settings, "."],
            cwd=self._folder,
            check=True,
        )


class _RunsInTheLoop(ast.NodeTransformer):
    """Turns `asyncio.run(main())` outside functions into `await main()`, because the page already has a loop."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) in ("asyncio.run", "uvloop.run"):
            return ast.copy_location(ast.Await(node.args[0]), node)
        return self.generic_visit(node)

    def _stay_out(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _stay_out


def run(path: Path) -> int:
    """Run a page and return 0; raise if the code does not do what the page says."""
    unraisable: list[object] = []
    sys.unraisablehook = lambda args: unraisable.append(args.exc_value)
    with tempfile.TemporaryDirectory(prefix="docs-") as folder, Docs() as docs, asyncio.Runner() as runner:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            runner.run(Page(path, docs, Path(folder)).run())
            gc.collect()
        finally:
            os.chdir(ROOT)
    if unraisable:
        raise AssertionError(f"the page leaves behind: {unraisable}")
    return 0


# ------------------------------------------------------------------------------------------------------ checks


def extract(folder: Path, sources: list[Path]) -> None:
    """Write the code of pages to files, in which each line has the same number as in its page.

    Raises:
        ValueError: two blocks have the same file name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    for page in sources:
        name = "_".join(page.relative_to(ROOT if page.is_relative_to(ROOT) else page.parent).parts)
        lines: list[str] = ["from tests.support.docs_runner import docs  # noqa: F401, I001"]
        for block in blocks_of(page):
            if block.language != "python":
                continue
            if block.file_name is None:
                lines += [""] * (block.line - 1 - len(lines))
                lines += block.code.splitlines()
            elif (file := folder / block.file_name).exists():
                raise ValueError(f"{block.place}: another page has a file {file.name}; choose another name")
            else:
                file.write_text(block.padded(block.code))
        module = re.sub(r"[^a-z]", "_", name.lower().removesuffix(".md"))
        (folder / f"page_{module}.py").write_text("\n".join(lines) + "\n")


def check(folder: Path, sources: list[Path]) -> int:
    """Run ruff and mypy on the code of pages; return 0 if both pass."""
    extract(folder, sources)
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([str(folder), str(ROOT)])}
    tools = Path(sys.executable).parent
    return max(
        subprocess.run([tools / "ruff", "check", *RUFF, folder], cwd=ROOT).returncode,
        subprocess.run([tools / "mypy", *MYPY, folder], cwd=ROOT, env=environment).returncode,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Run or check the code of the documentation.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run a page").add_argument("page", type=Path)
    checks = commands.add_parser("check", help="ruff and mypy on the code of all pages")
    checks.add_argument("--folder", type=Path, default=ROOT / "build" / "docs")
    arguments = parser.parse_args()
    return run(arguments.page.resolve()) if arguments.command == "run" else check(arguments.folder, pages())


if __name__ == "__main__":
    sys.exit(main())
