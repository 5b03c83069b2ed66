"""A driver of its own process: it streams the files of a folder to a topic, and starts its query again when that fails.

    python -m tests.spark_driver SERVERS TOPIC FOLDER CHECKPOINT DELIVERY PARTITIONS SHUFFLE

Prints "done" and how often the query was started. It is ended by whoever likes to kill it."""

from __future__ import annotations

import os
import sys

from aioproducer.spark import partition_by_key
from tests.spark_crashing import GROUP, CrashingSink
from tests.spark_stage import session

STARTS = 6
MASTER = "TEST_SPARK_MASTER"
"""The variable that names another one than local[2]."""


def main(
    servers: str, topic: str, folder: str, checkpoint: str, delivery: str, partitions: int, shuffle: int
) -> None:
    os.environ[GROUP] = str(os.getpgid(0))
    spark = session(os.environ.get(MASTER, "local[2]"), spark__sql__shuffle__partitions=shuffle)
    spark.dataSource.register(CrashingSink)
    for start in range(1, STARTS + 1):
        df = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1).json(folder)
        if delivery == "exactly_once":
            df = partition_by_key(df, partitions)
        writer = (
            df.writeStream.format(CrashingSink.name())
            .option("kafka.bootstrap.servers", servers)
            .option("topic", topic)
            .option("delivery", delivery)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
        )
        for name, value in os.environ.items():
            if name.startswith("SINK_"):
                writer = writer.option(name.removeprefix("SINK_").replace("__", "."), value)
        if delivery == "exactly_once":
            writer = writer.option("transactionalId", f"tx-{topic}")
        try:
            writer.start().awaitTermination()
        except Exception as error:  # what a supervisor would do with any of them
            print("query failed:", str(error).replace("\n", " ")[:2000], flush=True)
            continue
        print("done after", start, "starts", flush=True)
        spark.stop()
        return
    sys.exit("the query failed too often")


if __name__ == "__main__":
    main(*sys.argv[1:6], int(sys.argv[6]), int(sys.argv[7]))
