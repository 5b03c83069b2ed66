"""The walk of one record through the package: which function calls which, from `send` to the result of its delivery.

    python -m tests.support.walk [--calls]

The record has a key and its topic is warm: the leader is known, the connection is open, and earlier
records are acknowledged. The cluster runs in another process, so only the producer's calls are seen. The program counts

    calls            the Python frames of the package, and the calls into and out of its compiled files; reading or
                     writing a field of a compiled class is not a call
    changes of file  two consecutive calls in different files
    upward calls     calls from a module to one of a higher layer (tests/project/test_layering.py)

To see these calls, it copies the package to build/walk and builds the compiled files with profiling hooks."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from tests.project.test_layering import height_of

ROOT = Path(__file__).parent.parent.parent
BUILD = ROOT / "build" / "walk"
EXTENSIONS = ["records/_record_path.pyx", "protocol/_request_path.pyx"]
COMPILED = (".pyx", ".pxi")
INCLUDED = [
    "records/_callbacks.pxi",
    "records/_columns.pxi",
    "records/_gathering.pxi",
    "records/_lines.pxi",
    "records/_user_code.pxi",
]
COMPILED_FILES = {path.rpartition("/")[2]: path for path in (*EXTENSIONS, *INCLUDED)}
"""Compiled files by name: the hooks receive a file's name without its folder, or with a different folder."""
FIELD_ACCESS = ("__get__", "__set__")
WARM_UP = 5
"""The number of records sent before the one that is followed."""


class Call(NamedTuple):
    """One call. `caller` is the file of the innermost frame of the package below it, "" for the event loop's calls."""

    depth: int
    caller: str
    file: str
    function: str

    @property
    def is_upward(self) -> bool:
        return self.caller != "" and _layer(self.file) > _layer(self.caller)

    def __str__(self) -> str:
        return f"{'  ' * self.depth}{self.file} {self.function}{'  ^' if self.is_upward else ''}"


class Walk(NamedTuple):
    """The calls of one record, in order."""

    calls: Sequence[Call]

    @property
    def changes_of_file(self) -> int:
        return sum(before.file != after.file for before, after in pairwise(self.calls))

    @property
    def upward(self) -> list[Call]:
        return [call for call in self.calls if call.is_upward]

    def __str__(self) -> str:
        files = {call.file for call in self.calls}
        compiled = [file for file in files if file.endswith(COMPILED)]
        lines = [
            f"calls            {len(self.calls):4}",
            f"files            {len(files) - len(compiled):4} of Python, {len(compiled)} compiled",
            f"changes of file  {self.changes_of_file:4}",
            f"upward calls     {len(self.upward):4}",
            *(f"    {call.caller} -> {call.file} {call.function}" for call in self.upward),
        ]
        return "\n".join(lines)


class Recorder:
    """A profile function that records the calls within the package."""

    def __init__(self, package: Path) -> None:
        self._package = f"{package}/"
        self._stack: list[tuple[str, str]] = []
        self.calls: list[Call] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "return"):
            return  # the compiled files' hooks also report C calls
        file = self._file_of(frame)
        if file is None:
            return
        if event == "call":
            self._called(file, frame.f_code.co_name)
        elif self._stack:
            self._stack.pop()

    def _file_of(self, frame: FrameType) -> str | None:
        name = frame.f_code.co_filename
        if name.startswith(self._package):
            return name.removeprefix(self._package)
        return COMPILED_FILES.get(Path(name).name)

    def _called(self, file: str, function: str) -> None:
        caller = self._stack[-1][0] if self._stack else ""
        is_within_compiled = file.endswith(COMPILED) and caller.endswith(COMPILED)
        if function not in FIELD_ACCESS and not is_within_compiled:
            self.calls.append(Call(len(self._stack), caller, file, function))
        self._stack.append((file, function))


def _layer(file: str) -> tuple[int, int]:
    return height_of(".".join(Path(file).with_suffix("").parts))


def build() -> Path:
    """Build the package with profiling hooks in its compiled files, under build/walk."""
    package = BUILD / "aioproducer"
    shutil.rmtree(BUILD, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "aioproducer", package, ignore=ignored)
    for name in EXTENSIONS:
        source = package / name
        cython = [sys.executable, "-m", "cython", "-3", "-X", "profile=True", source.name]
        subprocess.run(cython, cwd=source.parent, check=True)
        target = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        flags = ["-O1", "-fPIC", "-shared", "-w", f"-I{sysconfig.get_path('include')}"]
        subprocess.run(["cc", *flags, source.with_suffix(".c"), "-o", target, "-lm"], check=True)
    return package


def start_cluster() -> tuple[subprocess.Popen[str], str]:
    """Start a cluster in another process, which ends with this one; return the process and the cluster's address."""
    command = [sys.executable, "-m", "aioproducer.testing", "--port", "0", "--topic", "orders:1"]
    cluster = subprocess.Popen(
        [*command, "--stop-with-stdin"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert cluster.stdout is not None
    return cluster, cluster.stdout.readline().split()[-1]


async def follow(address: str, recorder: Recorder) -> None:
    """Send one record to a warm topic while `recorder` is active."""
    from aioproducer import Producer

    async with Producer(bootstrap_servers=address, linger_ms=0) as producer:
        for _ in range(WARM_UP):
            await (await producer.send("orders", b"value", key=b"key"))
        await asyncio.sleep(0)  # the sender's pass after an answer belongs to the previous record
        sys.setprofile(recorder)  # type: ignore[arg-type]  # typeshed wants the name of the last parameter to be arg
        try:
            await (await producer.send("orders", b"value", key=b"key"))
        finally:
            sys.setprofile(None)


def walk() -> Walk:
    """Build, send one record, and return its calls."""
    package = build()
    sys.path.insert(0, str(package.parent))
    cluster, address = start_cluster()
    recorder = Recorder(package)
    try:
        asyncio.run(follow(address, recorder))
    finally:
        cluster.terminate()
        cluster.wait()
    return Walk(recorder.calls)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.walk", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--calls", action="store_true", help="print each call, indented by depth")
    arguments = parser.parse_args()
    found = walk()
    if arguments.calls:
        print("\n".join(map(str, found.calls)), end="\n\n")
    print(found)


if __name__ == "__main__":
    main()
