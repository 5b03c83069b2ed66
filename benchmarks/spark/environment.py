"""The environment for Spark's own Kafka sink: its jars, and a virtual environment with the matching PySpark.

Both are created once, under build/."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "bench-spark"
SCALA = "2.13"
PEERS = ("confluent-kafka>=2.16,<3", "aiokafka>=0.12,<1")
PANDAS = "pandas>=2.2,<4"
"""Needed only by mapInArrow, which Spark rejects without it."""


class Connector(NamedTuple):
    """A release of spark-sql-kafka-0-10, with the versions that its POM names."""

    version: str
    kafka_clients: str
    commons_pool: str
    token_provider: str
    """The version of spark-token-provider-kafka-0-10: that of the same release, unless releases are mixed on
    purpose."""

    @property
    def name(self) -> str:
        """The name in the heading of a table."""
        mixed = (
            "" if self.token_provider == self.version else f" with the token provider {self.token_provider}"
        )
        return f"spark-sql-kafka-0-10_{SCALA} {self.version}{mixed}, kafka-clients {self.kafka_clients}"

    @property
    def jars(self) -> Path:
        """The directory of the jars."""
        return BUILD / f"jars-{self.version}-{self.token_provider}"

    def artifacts(self) -> list[tuple[str, str, str]]:
        """Return the group, name and version of each jar; all other classes are in PySpark's own jars."""
        return [
            ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", self.version),
            ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", self.token_provider),
            ("org.apache.kafka", "kafka-clients", self.kafka_clients),
            ("org.apache.commons", "commons-pool2", self.commons_pool),
        ]


CONNECTORS = [
    Connector("4.2.0", "3.9.2", "2.13.1", "4.2.0"),
    Connector("4.1.1", "3.9.1", "2.12.1", "4.1.1"),
    Connector("4.0.0", "3.9.0", "2.12.0", "4.0.0"),
]
"""The known releases, newest first."""
MIXED = {"4.2.0": "4.1.0-preview1", "4.1.1": "4.1.0-preview1"}
"""A token provider that works with a release whose own is not on Maven Central. Used only with --connector."""


class MissingError(Exception):
    """A jar or package cannot be fetched; the text says what to do."""


def connector(wanted: str | None) -> Connector:
    """Return the newest release that is complete on Maven Central, or the wanted one, and fetch its jars.

    Jars that were fetched earlier are reused without a request.

    Raises:
        MissingError: there is no such release.
    """
    if wanted is None:
        for release in CONNECTORS:
            if release.jars.is_dir():
                return release
    tried = []
    for release in CONNECTORS:
        if wanted is None or release.version == wanted:
            mixed = [release._replace(token_provider=MIXED[wanted])] if wanted in MIXED else []
            for candidate in sorted([release, *mixed], key=lambda found: not found.jars.is_dir()):
                if _fetched(candidate):
                    return candidate
                tried.append(candidate.name)
    if not tried:
        known = ", ".join(release.version for release in CONNECTORS)
        raise MissingError(f"--connector {wanted}: unknown, expected one of {known}")
    raise MissingError(
        f"could not be fetched from Maven Central: {'; '.join(tried)}. Without a network, copy {BUILD} from a "
        "machine where it was fetched"
    )


def _fetched(release: Connector) -> bool:
    if release.jars.is_dir():
        return True
    fresh = release.jars.with_name(release.jars.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    wanted = [":".join(artifact) for artifact in release.artifacts()]
    print(f"fetching {release.name} from Maven Central", file=sys.stderr, flush=True)
    # A separate process, because jgo logs as it likes and keeps incomplete downloads.
    fetch = [sys.executable, "-m", "benchmarks.spark.fetch_jars", str(fresh), *wanted]
    done = subprocess.run(fetch, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(fresh)
        last = done.stderr.strip().splitlines()[-1:]
        print(f"not complete: {release.name} ({''.join(last)[:200]})", file=sys.stderr, flush=True)
        return False
    fresh.rename(release.jars)
    return True


def python_with(pyspark: str) -> Path:
    """Return the interpreter of this PySpark version's environment, which is created if it does not exist."""
    place = BUILD / f"pyspark-{pyspark}"
    interpreter, ready = place / "bin" / "python", place / ".ready"
    if not ready.exists():
        print(f"creating {place}: PySpark {pyspark} is 430 MB", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        wanted = [f"pyspark=={pyspark}", "pyarrow>=18", PANDAS, *PEERS, *_own_dependencies()]
        # -I, because pip would regard packages on PYTHONPATH as installed.
        subprocess.run([str(interpreter), "-I", "-m", "pip", "install", "-q", *wanted], check=True)
        ready.touch()
    return interpreter


def _own_dependencies() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: list[str] = tomllib.load(file)["project"]["dependencies"]
    return found
