"""Tests of the sink with Spark Connect, whose client talks to a server in another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pyspark
import pytest

from tests.support import spark_home
from tests.support.spark_stage import ROOT, stage

pytestmark = pytest.mark.slow

NEEDS = ["pandas>=2.2,<3", "grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71"]
"""The packages that only Spark's client needs."""

CLIENT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
from aioproducer.spark import partition_by_key

df = spark.range(100).selectExpr("CAST(id AS string) AS key", "concat('v', id) AS value")
target = {"kafka.bootstrap.servers": sys.argv[1], "topic": "t"}
df.write.format("aioproducer").options(**target).mode("append").save()
once = {**target, "delivery": "exactly_once", "transactionalId": "tx", "txnAppId": "a", "txnVersion": "0"}
for _ in range(2):
    partition_by_key(df, 3).write.format("aioproducer").options(**{**once, "topic": "once"}).mode("append").save()
stream = spark.readStream.schema("key string, value string").json(sys.argv[2])
query = (
    partition_by_key(stream, 3).writeStream.format("aioproducer")
    .options(**{**once, "topic": "stream", "transactionalId": "ty"})
    .option("checkpointLocation", sys.argv[3]).trigger(availableNow=True)
)
try:
    query.start().awaitTermination()  # errors of a stream are raised when it runs
    sys.exit("txnAppId of a stream was not rejected")
except Exception as error:
    assert "for batch writes" in str(error), error
del once["txnAppId"], once["txnVersion"]
query = (
    partition_by_key(stream, 3).writeStream.format("aioproducer")
    .options(**{**once, "topic": "stream", "transactionalId": "ty"})
    .option("checkpointLocation", sys.argv[3]).trigger(availableNow=True).start()
)
query.awaitTermination(100)
try:
    df.selectExpr("CAST(key AS int) AS value").write.format("aioproducer").options(**target).mode("append").save()
    sys.exit("a value of ints was not rejected")
except Exception as error:
    assert "value must be a(n) string or binary" in str(error), error
print("done")
spark.stop()
"""


@pytest.fixture(scope="module")
def needs():
    """A folder with the packages that the client needs, downloaded once and kept under build/."""
    folder = ROOT / "build" / f"spark-connect-{pyspark.__version__}"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-warn-conflicts", "--target", str(fresh)]
        subprocess.run([*pip, *NEEDS], check=True, timeout=200, stdin=subprocess.DEVNULL)
        fresh.rename(folder)
    return folder


@pytest.mark.timeout(400)
def test_batches_streams_and_errors(needs, tmp_path):
    (tmp_path / "in").mkdir()
    rows = [f'{{"key": "{number}", "value": "v{number}"}}\n' for number in range(50)]
    (tmp_path / "in" / "rows.json").write_text("".join(rows))
    with stage(1, default_partitions=3) as cluster:
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                CLIENT,
                cluster.servers,
                str(tmp_path / "in"),
                str(tmp_path / "checkpoint"),
            ],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(needs), str(ROOT), *sys.path[1:]]),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_HOME": str(spark_home.home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.stdout.splitlines()[-1:] == ["done"], ended.stdout[-2000:] + ended.stderr[-4000:]

        everything = sorted(b"v%d" % number for number in range(100))
        assert cluster.committed("t") == everything
        assert cluster.committed("once") == everything
        assert cluster.committed("stream") == sorted(b"v%d" % number for number in range(50))
