"""Checks the wheel; run by `make wheel` in an environment with only the wheel and its dependencies."""

import asyncio
import importlib.metadata
import importlib.util
import pathlib

import aioproducer
from aioproducer.protocol.compression import Codec, compressor
from aioproducer.testing import EmbeddedCluster


async def main() -> None:
    for codec in Codec:
        compressor(codec)(b"x" * 1000)
    async with EmbeddedCluster(brokers=1, topics={"t": 1}) as cluster:
        async with aioproducer.Producer(cluster.bootstrap_servers, compression_type="zstd") as producer:
            metadata = await producer.send_and_wait("t", b"value")
        assert metadata.offset == 0, metadata
        assert [record.value for record in cluster.records("t")] == [b"value"]


package = pathlib.Path(aioproducer.__file__).parent
assert "site-packages" in str(package), package
assert (package / "py.typed").exists()
assert (package / "spark" / "sink.py").exists()
assert importlib.util.find_spec("pyspark_aioproducer"), "Spark would not find the sink"
asyncio.run(main())
print("the wheel works:", importlib.metadata.version("aioproducer"))
