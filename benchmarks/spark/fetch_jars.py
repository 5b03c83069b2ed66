"""Fetch jars from Maven Central into a directory, in a separate process.

python -m benchmarks.spark.fetch_jars DIRECTORY GROUP:NAME:VERSION..."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile


def fetch(directory: str, artifacts: list[str]) -> None:
    """Copy the jars to the directory. If a jar does not exist, raise jgo's exception."""
    # jgo considers any file in its repository complete, so this repository starts empty.
    with tempfile.TemporaryDirectory() as repository:
        os.environ["M2_REPO"] = repository
        from jgo.maven import MavenContext

        context = MavenContext()
        for artifact in artifacts:
            group, name, version = artifact.split(":")
            shutil.copy(context.project(group, name).at_version(version).artifact().resolve(), directory)


if __name__ == "__main__":
    fetch(sys.argv[1], sys.argv[2:])
