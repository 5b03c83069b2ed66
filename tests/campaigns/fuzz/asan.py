"""Runs the tests of the compiled code under AddressSanitizer, with instrumented extensions built for it.

    python -m tests.campaigns.fuzz.asan [--planted]

Requires Linux and gcc or clang with libasan. The package is copied to build/asan; nothing else is changed."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
BUILD = ROOT / "build" / "asan"
PACKAGE = BUILD / "aioproducer"
EXTENSIONS = ["records._record_path", "protocol._request_path"]
TESTS = [
    "tests/records/test_record_path.py",
    "tests/records/test_record_path_bytes.py",
    "tests/records/test_batch.py",
    "tests/records/test_accumulator.py",
    "tests/records/test_accumulator_memory.py",
    "tests/records/test_delivery.py",
    "tests/records/test_linger.py",
    "tests/records/test_partition_choice.py",
    "tests/records/test_receipt.py",
    "tests/sending/test_bulk.py",
    "tests/sending/test_sender_split.py",
    "tests/protocol/test_request_path.py",
]
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address", "-fPIC", "-shared"]

NO_SPARES = ("DEF LARGEST_SPARE = 256 * 1024", "DEF LARGEST_SPARE = 0")
"""A buffer kept for the next batch would hide writes past its end and uses after its release."""
PLANTED = ("    return (6 * LONGEST_VARINT + 1 + record.headers_size", "    return (4 + record.headers_size")
"""A planted bug that must be found: too little room for a record."""


FOUND = 99
"""The exit status of a process that AddressSanitizer ended."""
REPORT = BUILD / "report"
"""The beginning of the report files' names; the process id follows."""


def build(planted: bool) -> None:
    """Build the instrumented extensions, beside a copy of the package's Python files."""
    shutil.rmtree(BUILD, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    shutil.copytree(ROOT / "aioproducer", PACKAGE, ignore=ignored)
    for name in EXTENSIONS:
        _build(name, [] if name != EXTENSIONS[0] else [NO_SPARES, PLANTED] if planted else [NO_SPARES])


def _build(name: str, changes: list[tuple[str, str]]) -> None:
    source = PACKAGE / f"{name.replace('.', '/')}.pyx"
    text = source.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, f"{source.name} no longer contains the line {old!r}"
        text = text.replace(old, new)
    source.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "cython", "-3", source.name], cwd=source.parent, check=True)
    extension = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
    include = sysconfig.get_path("include")
    c_file = source.with_suffix(".c")
    subprocess.run([compiler(), *FLAGS, f"-I{include}", str(c_file), "-o", str(extension)], check=True)


def compiler() -> str:
    """Return the C compiler: CC, or cc."""
    return os.environ.get("CC", "cc")


def environment() -> dict[str, str]:
    """Return the environment of the tests. libasan is loaded first, and Python allocates each object separately."""
    asan = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    return os.environ | {
        "LD_PRELOAD": asan.stdout.strip(),
        # Python never frees all its memory at exit, so leaks are not detected. The report goes to a file, because
        # pytest captures standard error when the process ends.
        "ASAN_OPTIONS": f"detect_leaks=0:halt_on_error=1:exitcode={FOUND}:log_path={REPORT}",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(BUILD), str(ROOT)]),
        "AIOPRODUCER_TEST_SLOWNESS": "5",
    }


def pytest_sessionstart() -> None:
    """Check that the instrumented extensions are in use. This module is a pytest plugin of the run that it starts."""
    for name in EXTENSIONS:
        extension = importlib.import_module(f"aioproducer.{name}")
        assert str(extension.__file__).startswith(str(PACKAGE)), extension.__file__


def main() -> int:
    """Run the command; return the exit status of pytest, or FOUND. With --planted, return 0 if the overflow was
    found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaigns.fuzz.asan", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--planted", action="store_true", help="build with an overflow that must be found")
    parser.add_argument("tests", nargs="*", default=TESTS)
    arguments = parser.parse_args()
    build(arguments.planted)
    # -P: import the copy, not the package in the current directory.
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.campaigns.fuzz.asan",
        "-p",
        "no:cacheprovider",
    ]
    # pytest puts these directories first, so the copy must come before those in pyproject.toml.
    command += ["-o", f"pythonpath={BUILD} . examples"]
    tests = TESTS[:1] if arguments.planted else arguments.tests
    status = subprocess.run([*command, *tests], cwd=ROOT, env=environment(), check=False).returncode
    reports = sorted(BUILD.glob(f"{REPORT.name}.*"))
    for report in reports:
        sys.stdout.write(report.read_text(encoding="utf-8", errors="replace"))
    if arguments.planted:
        is_found = status == FOUND and any("heap-buffer-overflow" in report.read_text() for report in reports)
        sys.stdout.write(
            "\nthe planted overflow was found\n" if is_found else "\nthe planted overflow was NOT found\n"
        )
        return 0 if is_found else 1
    return status or (FOUND if reports else 0)


if __name__ == "__main__":
    sys.exit(main())
