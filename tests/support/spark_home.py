"""Starts Spark in less than half the usual time.

Spark's Python processes import from pyspark.zip, which has no bytecode, so each of them spends about 0.5 s on
compiling. Without that archive, they use the installed package. Java maps the classes from an earlier run instead of
reading 250 jars."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pyspark

ROOT = Path(__file__).parent.parent.parent
PACKAGE = Path(pyspark.__file__).parent
RUN_TIMEOUT = 200
"""The time limit, in seconds, of the run that writes the classes."""


@functools.cache
def home() -> Path:
    """A SPARK_HOME with links to the package, but without its archives of Python modules."""
    made = ROOT / "build" / f"spark-home-{pyspark.__version__}"
    made.mkdir(parents=True, exist_ok=True)
    for entry in PACKAGE.iterdir():
        link = made / entry.name
        if entry.name != "python" and not link.is_symlink():
            fresh = link.with_name(f".{entry.name}.{os.getpid()}")
            fresh.symlink_to(entry)
            fresh.rename(link)  # another process may be creating it, too
    return made


@functools.cache
def java_options() -> str:
    """Options for Java: a single compiler, and the classes from an earlier run. If there was none, run one first."""
    kept = ROOT / "build" / f"spark-{pyspark.__version__}.jsa"
    if not kept.exists() and DUMP not in os.environ:
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        subprocess.run(
            [sys.executable, "-m", "tests.support.spark_home"],
            cwd=ROOT,
            env={**os.environ, DUMP: str(fresh), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=RUN_TIMEOUT,
        )
        if fresh.exists():  # not every Java can write this file
            fresh.rename(kept)
    told = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
    if SCRATCH in os.environ:  # a killed driver leaves its directories behind
        told += f" -Djava.io.tmpdir={os.environ[SCRATCH]}"
    if DUMP in os.environ:
        return f"{told} -XX:ArchiveClassesAtExit={os.environ[DUMP]}"
    return f"{told} -XX:SharedArchiveFile={kept}" if kept.exists() else told


SCRATCH = "TEST_SPARK_SCRATCH"
"""The environment variable with the directory for Spark's temporary files."""
DUMP = "TEST_SPARK_CLASSES"
"""The environment variable with the file to which this run writes its classes."""


def main() -> None:
    """Run a stream from a file to the sink, to load the classes that all streams use."""
    import tempfile

    from pyspark import SparkContext

    from aioproducer.spark import partition_by_key
    from tests.support.spark_stage import session, stage

    with stage(1, default_partitions=3) as cluster, tempfile.TemporaryDirectory() as folder:
        spark = session()
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "rows.json").write_text('{"key": "k", "value": "v"}\n')
        df = spark.readStream.schema("key string, value string").json(f"{folder}/in")
        told = {"topic": "t", "delivery": "exactly_once", "transactionalId": "t"}
        writer = partition_by_key(df, 3).writeStream.format("aioproducer").options(**told)
        query = (
            writer.option("kafka.bootstrap.servers", cluster.servers)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends, and writes the classes that it has loaded
    gateway.proc.wait()


if __name__ == "__main__":
    main()
