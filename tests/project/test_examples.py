"""The examples as users run them: as processes, with real sockets and a cluster on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from aioproducer import Producer
from aioproducer.protocol.error_codes import ErrorCode
from aioproducer.testing import EmbeddedCluster
from tests.conftest import MS
from tests.support.example_processes import DEADLINE, EXAMPLES, Example, run, running
from tests.support.otlp_collector import Collector
from tests.support.producing import PRODUCE, within
from tests.support.scripted_broker import dead_port

pytestmark = pytest.mark.slow

SCRIPTS = [
    "service",
    "fastapi_app",
    "fan_in",
    "graceful_shutdown",
    "from_aiokafka",
    "wsgi_workers",
    "faststream_app",
    "avro_service",
    "avro_loop",
]
STARTS_WITHOUT_KAFKA = ("fastapi_app", "wsgi_workers", "faststream_app", "avro_service")
NEED_KAFKA = [script for script in SCRIPTS if script not in STARTS_WITHOUT_KAFKA]
one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])
"""The examples run on their own loops, so the loop of the tests does not matter."""


# ----------------------------------------------------------------------------------- properties of all examples


@pytest.mark.parametrize("script", SCRIPTS)
@one_loop
async def test_help_explains_every_option(script):
    status, out, err = await run(script, "--help")

    assert (status, err) == (0, "")
    options = [line for line in out.splitlines() if line.startswith("  --")]
    assert len(options) >= 4
    assert "--bootstrap-servers" in out
    assert out.count("default: ") >= 4


def test_the_docstring_says_how_to_run_it():
    for script in SCRIPTS:
        text = (EXAMPLES / f"{script}.py").read_text()
        assert f"    python examples/{script}.py" in text.partition('"""\n\n')[0], script


WITHOUT_UVLOOP = "import sys; sys.modules['uvloop'] = None\n"
TELLS_ITS_LOOP = """
import asyncio, os, runpy, sys
run_until_complete = asyncio.Runner.run
def run(self, *arguments, **named):
    print("runs on", type(self.get_loop()).__module__)
    return run_until_complete(self, *arguments, **named)
asyncio.Runner.run = run
sys.argv.pop(0)
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("is_installed", [True, False], ids=["uvloop", "without uvloop"])
@pytest.mark.parametrize("script", [*NEED_KAFKA, "flights_demo"])
@one_loop
async def test_uvloop_is_used_where_it_is_installed_and_not_required(script, is_installed):
    code = TELLS_ITS_LOOP if is_installed else WITHOUT_UVLOOP + TELLS_ITS_LOOP
    nobody = f"127.0.0.1:{dead_port()}"
    patience = ["--bootstrap-servers", nobody, "--patience", "0.3"]
    arguments = ["--kafka", nobody, "--limit", "1"] if script == "flights_demo" else patience
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(EXAMPLES / f"{script}.py"), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    status, out, err = await Example(process).finish()

    assert status == 2, err
    assert nobody in err
    assert ("runs on uvloop" in out) == is_installed


@pytest.mark.parametrize("script", NEED_KAFKA)
@one_loop
async def test_without_a_broker_it_says_so_and_names_the_address(script):
    nobody = f"127.0.0.1:{dead_port()}"

    status, _, err = await run(script, "--bootstrap-servers", nobody, "--patience", 0.3)

    assert status == 2
    assert nobody in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 3


@pytest.mark.parametrize("script", NEED_KAFKA)
@one_loop
async def test_ctrl_c_during_the_wait_for_a_broker_ends_it(script):
    async with EmbeddedCluster() as cluster:
        cluster.freeze_broker(0)
        async with running(
            script, "--bootstrap-servers", cluster.bootstrap_servers, "--patience", 60
        ) as example:
            async with asyncio.timeout(DEADLINE * 1000 * MS):
                while not cluster.broker(0).connection_count:  # noqa: ASYNC110  # there is no event to wait for
                    await asyncio.sleep(MS)

            status, _, err = await example.finish(signal.SIGINT)

    assert status == 130
    assert "Traceback" not in err


# ------------------------------------------------------------------------------------------------ service.py


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def ask(client: tuple[asyncio.StreamReader, asyncio.StreamWriter], line: bytes) -> str:
    reader, writer = client
    writer.write(line + b"\n")
    return (await within(DEADLINE, reader.readline())).decode().strip()


@asynccontextmanager
async def service(cluster: EmbeddedCluster, *arguments: object) -> AsyncIterator[tuple[Example, str]]:
    options = ["--bootstrap-servers", cluster.bootstrap_servers, "--port", 0, "--patience", DEADLINE]
    async with running("service", *options, *arguments) as example:
        yield example, await example.line("listening on ")


@one_loop
async def test_the_service_answers_many_clients_once_kafka_has_stored_their_orders():
    async with EmbeddedCluster(3, topics={"orders": 4}) as cluster, service(cluster) as (example, address):

        async def customer(number: int) -> list[str]:
            async with client_of(address) as client:
                order = json.dumps({"customer": f"c{number}", "item": number}).encode()
                return [await ask(client, order) for _ in range(5)]

        answers = [answer for told in await asyncio.gather(*map(customer, range(20))) for answer in told]
        status, out, err = await example.finish(signal.SIGTERM)

        stored = {
            f"stored: orders-{partition}@{record.offset}"
            for partition in range(4)
            for record in cluster.records("orders", partition)
        }
        assert set(answers) == stored
        assert len(stored) == 100
        assert (status, out, err) == (0, "100 orders stored, 0 not\n", "")


@one_loop
async def test_the_answers_of_the_service_say_what_a_client_has_to_do():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster, service(cluster) as (example, address):
        async with client_of(address) as client:
            answers = [
                await ask(client, b"not json"),
                await ask(client, b'{"item": 7}'),
                await ask(client, b"[1]"),
                await ask(client, b'{"customer": "ann", "item": 7}'),
            ]
            cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            answers.append(await ask(client, b'{"customer": "ann", "item": 8}'))
            answers.append(await ask(client, b"x" * 70_000))
        status, _, err = await example.finish(signal.SIGINT)

    kinds = [answer.partition(":")[0] for answer in answers]
    assert kinds == ["refused", "refused", "refused", "stored", "again", "refused"]
    assert "64 KiB" in answers[-1]
    assert (status, err) == (0, "")


@one_loop
async def test_the_service_reports_an_unknown_outcome_to_the_client():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        async with service(cluster, "--patience", 0.5) as (example, address), client_of(address) as client:
            assert (await ask(client, b'{"customer": "ann"}')).startswith("stored:")
            cluster.freeze_broker(0)
            answer = await ask(client, b'{"customer": "bob"}')
            cluster.thaw_broker(0)
            status, _, _ = await example.finish(signal.SIGTERM)

    assert answer.startswith("unknown:")
    assert status == 0


@one_loop
async def test_the_service_answers_the_requests_that_it_has_read_before_it_ends():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster, service(cluster) as (example, address):
        async with client_of(address) as client, client_of(address) as idle:
            await ask(client, b'{"customer": "ann"}')
            release = asyncio.Event()
            held = cluster.faults.add(PRODUCE, hold=release)
            asking = asyncio.create_task(ask(client, b'{"customer": "bob"}'))
            await within(DEADLINE, held.reached())
            example.process.send_signal(signal.SIGTERM)
            assert await within(DEADLINE, idle[0].read()) == b""  # an idle connection is closed immediately
            release.set()

            assert (await asking).startswith("stored: orders-0@1")
        status, out, err = await example.finish()

    assert (status, out, err) == (0, "2 orders stored, 0 not\n", "")


# ------------------------------------------------------------------------------------------- fastapi_app.py


@asynccontextmanager
async def shop(
    cluster: EmbeddedCluster, *arguments: object
) -> AsyncIterator[tuple[Example, httpx.AsyncClient]]:
    options = ["--bootstrap-servers", cluster.bootstrap_servers, "--port", 0, "--patience", DEADLINE]
    async with running("fastapi_app", *options, *arguments) as example:
        address = (await example.line("Uvicorn running on ", "stderr")).split()[0]
        async with httpx.AsyncClient(base_url=address, timeout=DEADLINE) as client:
            yield example, client


@one_loop
async def test_the_web_application_stores_orders_and_accepts_clicks():
    async with (
        EmbeddedCluster(3, topics={"orders": 4, "clicks": 2}) as cluster,
        shop(cluster) as (example, client),
    ):
        orders = [
            client.post("/orders", json={"customer": f"c{number % 7}", "item": number})
            for number in range(60)
        ]
        clicks = [client.post("/clicks", json={"page": f"/{number}"}) for number in range(40)]
        answers = await asyncio.gather(*orders, *clicks)
        ready = await client.get("/ready")
        metrics = await client.get("/metrics/")
        bad = await client.post("/orders", json={"customer": "ann"})
        status, _, err = await example.finish(signal.SIGTERM)

        assert [answer.status_code for answer in answers] == [201] * 60 + [202] * 40
        places = {(answer.json()["partition"], answer.json()["offset"]) for answer in answers[:60]}
        assert places == {(p, record.offset) for p in range(4) for record in cluster.records("orders", p)}
        assert len(cluster.records("clicks")) == 40
        assert (ready.status_code, ready.json()["ok"]) == (200, True)
        assert 'aioproducer_records_acked_total{client_id="shop",topic="orders"} 60.0' in metrics.text
        assert 'outcome="unknown",topic="orders"} 0.0' in metrics.text
        assert bad.status_code == 422
        assert "100 delivered, 0 not" in err
        assert status in (0, -signal.SIGTERM)  # uvicorn raises the signal again after it has shut down


@pytest.mark.parametrize("is_installed", [True, False], ids=["uvloop", "without uvloop"])
@one_loop
async def test_the_web_application_runs_on_uvloop_where_it_is_installed(is_installed):
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        environment = {"AIOPRODUCER_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
        command = (
            "import asyncio, sys\n"
            f"{'' if is_installed else WITHOUT_UVLOOP}"
            "import uvicorn\n"
            "sys.path.insert(0, 'examples')\n"
            "import fastapi_app\n"
            "@fastapi_app.app.get('/loop')\n"
            "async def loop() -> bool:\n"
            "    return type(asyncio.get_running_loop()).__module__ == 'uvloop'\n"
            "uvicorn.run('fastapi_app:app', port=0)\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", command),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
            cwd=EXAMPLES.parent,
        )
        example = Example(process)
        try:
            address = (await example.line("Uvicorn running on ", "stderr")).split()[0]
            async with httpx.AsyncClient(base_url=address, timeout=DEADLINE) as client:
                assert (await client.get("/loop")).json() is is_installed
                stored = await client.post("/orders", json={"customer": "ann", "item": 7})
            process.send_signal(signal.SIGINT)
            await within(DEADLINE, process.wait())
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

        assert stored.status_code == 201
        assert [record.key for record in cluster.records("orders")] == [b"ann"]


@one_loop
async def test_the_web_application_answers_503_and_504_when_kafka_fails():
    async with EmbeddedCluster(topics={"orders": 1, "clicks": 1}) as cluster:
        async with shop(cluster, "--patience", 0.4) as (example, client):
            order = {"customer": "ann", "item": 7}
            cluster.faults.add(PRODUCE, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            refused = await client.post("/orders", json=order)
            stored = await client.post("/orders", json=order)
            cluster.freeze_broker(0)
            unknown = await client.post("/orders", json=order)
            cluster.thaw_broker(0)
            await example.finish(signal.SIGTERM)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert stored.status_code == 201
    assert unknown.status_code == 504


@one_loop
async def test_the_web_application_starts_without_kafka_and_is_ready_when_kafka_is():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        cluster.freeze_broker(0)
        async with shop(cluster, "--patience", 0.4) as (example, client):
            order = {"customer": "ann", "item": 7}
            early = await client.get("/ready")
            lost = await client.post("/orders", json=order)
            cluster.thaw_broker(0)
            async with asyncio.timeout(DEADLINE * 1000 * MS):
                while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110  # there is no event to wait for
                    await asyncio.sleep(10 * MS)
            stored = await client.post("/orders", json=order)
            await example.finish(signal.SIGTERM)

    assert early.status_code == 503
    assert "127.0.0.1" in early.json()["reason"]
    assert lost.status_code == 503
    assert stored.status_code == 201


@pytest.mark.promise(
    "Observability", "a FastAPI application runs under uvicorn with Prometheus and OpenTelemetry, unchanged"
)
@one_loop
async def test_an_order_has_one_trace_from_the_request_to_the_acknowledgement():
    with Collector() as collector:
        async with EmbeddedCluster(topics={"orders": 1}) as cluster:
            process = await asyncio.create_subprocess_exec(
                *(
                    str(Path(sys.executable).parent / "opentelemetry-instrument"),
                    sys.executable,
                    "-m",
                    "uvicorn",
                ),
                *("--app-dir", str(EXAMPLES), "--port", "0", "fastapi_app:app"),
                stderr=asyncio.subprocess.PIPE,
                env={
                    **os.environ,
                    **collector.environment,
                    "AIOPRODUCER_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
                },
            )
            example = Example(process)
            try:
                address = (await example.line("Uvicorn running on ", "stderr")).split()[0]
                async with httpx.AsyncClient(base_url=address, timeout=DEADLINE) as client:
                    stored = await client.post("/orders", json={"customer": "ann", "item": 7})
                    page = await client.get("/metrics/")
                process.send_signal(signal.SIGINT)
                await within(DEADLINE, process.wait())
            finally:
                if process.returncode is None:
                    process.kill()
                await process.communicate()
            [record] = cluster.records("orders")

    assert stored.status_code == 201
    assert 'aioproducer_records_acked_total{client_id="shop",topic="orders"} 1.0' in page.text
    by_name = {span.name: span for span in collector.spans}
    request, sent = by_name["POST /orders"], by_name["send orders"]
    assert sent.parent_span_id == request.span_id
    assert sent.trace_id == request.trace_id
    assert dict(record.headers)["traceparent"].split(b"-")[2].decode() == sent.span_id.hex()


@one_loop
async def test_the_web_application_answers_pending_requests_before_it_ends():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster, shop(cluster) as (example, client):
        await client.post("/orders", json={"customer": "ann", "item": 1})
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release)
        last = asyncio.create_task(client.post("/orders", json={"customer": "bob", "item": 2}))
        await within(DEADLINE, held.reached())
        example.process.send_signal(signal.SIGTERM)
        await example.line("Shutting down", "stderr")
        release.set()

        assert (await last).status_code == 201
        _, _, err = await example.finish()
        assert "2 delivered, 0 not" in err


@one_loop
async def test_the_web_application_sends_buffered_records_before_it_ends():
    async with EmbeddedCluster(topics={"clicks": 1}) as cluster, shop(cluster) as (example, client):
        release = asyncio.Event()
        cluster.faults.add(PRODUCE, hold=release, count=1_000_000)
        answers = [await client.post("/clicks", json={"page": f"/{number}"}) for number in range(10)]
        example.process.send_signal(signal.SIGTERM)
        await example.line("Waiting for application shutdown", "stderr")
        release.set()

        _, _, err = await example.finish()
        assert {answer.status_code for answer in answers} == {202}
        assert "10 delivered, 0 not" in err
        assert [record.value for record in cluster.records("clicks")] == [
            b"/%d" % number for number in range(10)
        ]


# -------------------------------------------------------------------------------------------------- fan_in.py


def numbers_in(out: str) -> dict[str, int]:
    """Return the figures in the report of fan_in.py."""
    words = out.replace(",", "").split()
    return {
        "accepted": int(words[words.index("accepted") - 2]),
        "dropped": int(out.split("full: ")[1].split()[0]),
        "most_bytes": int(words[words.index("most") + 1]),
        "most_waiters": int(out.split("at most ")[2].split()[0]),
        "delivered": int(words[words.index("delivered") + 1]),
    }


@one_loop
async def test_fan_in_waits_loses_nothing_and_stays_within_its_buffer():
    async with EmbeddedCluster(3, topics={"readings": 6}) as cluster:
        options = ["--tasks", 300, "--readings", 20, "--buffer-memory", 65536]
        status, out, err = await run("fan_in", "--bootstrap-servers", cluster.bootstrap_servers, *options)

        assert (status, err) == (0, "")
        report = numbers_in(out)
        assert report["accepted"] == report["delivered"] == 6000
        assert report["dropped"] == 0
        assert report["most_waiters"] > 0, "the buffer was never full"
        assert 0 < report["most_bytes"] <= 65536
        of_sensor: dict[bytes, list[int]] = {}
        for partition in range(6):
            for record in cluster.records("readings", partition):
                of_sensor.setdefault(record.key, []).append(int(record.value.split()[0]))
        assert of_sensor == {b"sensor-%d" % number: list(range(20)) for number in range(300)}


@one_loop
async def test_fan_in_may_drop_records_instead_and_delivers_the_accepted_ones():
    async with EmbeddedCluster(3, topics={"readings": 6}) as cluster:
        options = ["--tasks", 300, "--readings", 20, "--buffer-memory", 65536, "--policy", "drop"]
        status, out, err = await run("fan_in", "--bootstrap-servers", cluster.bootstrap_servers, *options)

        assert (status, err) == (0, "")
        report = numbers_in(out)
        assert report["accepted"] + report["dropped"] == 6000
        assert report["accepted"] == report["delivered"] == len(cluster.records("readings"))
        assert report["dropped"] > 0
        assert report["most_waiters"] == 0


@one_loop
async def test_ctrl_c_ends_fan_in_quickly():
    async with EmbeddedCluster(topics={"readings": 1}) as cluster:
        release = asyncio.Event()
        held = cluster.faults.add(PRODUCE, hold=release, count=1_000_000)
        options = ["--bootstrap-servers", cluster.bootstrap_servers, "--patience", 600]
        async with running("fan_in", *options) as example:
            await within(DEADLINE, held.reached())
            status, _, err = await example.finish(signal.SIGINT)
        release.set()

    assert status == 130
    assert err.splitlines()[-1] == "interrupted; records in the buffer were dropped"
    assert "Traceback" not in err


# ---------------------------------------------------------------------------------------- graceful_shutdown.py


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@one_loop
async def test_jobs_accepted_before_the_signal_are_delivered(number, tmp_path):
    journal, spill = tmp_path / "accepted.txt", tmp_path / "undelivered.jsonl"
    options = ["--rate", 5000, "--journal", journal, "--spill", spill]
    async with EmbeddedCluster(3, topics={"jobs": 3}) as cluster:
        async with running(
            "graceful_shutdown", "--bootstrap-servers", cluster.bootstrap_servers, *options
        ) as example:
            await example.line("working")
            async with asyncio.timeout(DEADLINE * 1000 * MS):
                while len(cluster.records("jobs")) < 500:  # noqa: ASYNC110  # there is no event to wait for
                    await asyncio.sleep(MS)
            release = asyncio.Event()
            held = cluster.faults.add(PRODUCE, hold=release, count=1_000_000)
            await within(DEADLINE, held.reached())
            example.process.send_signal(number)
            on_their_way = int((await example.line("ending; ")).split()[0])
            release.set()
            status, out, err = await example.finish()

        accepted = journal.read_bytes().splitlines()
        assert len(accepted) >= 500
        assert on_their_way > 0
        assert sorted(record.value for record in cluster.records("jobs")) == sorted(accepted)
        assert out == f"accepted {len(accepted)}, delivered {len(accepted)}, written to {spill}: 0\n"
        assert (status, err) == (0, "")
        assert not spill.exists()


@one_loop
async def test_jobs_that_kafka_did_not_store_in_time_are_in_the_file(tmp_path):
    journal, spill = tmp_path / "accepted.txt", tmp_path / "undelivered.jsonl"
    options = ["--rate", 2000, "--journal", journal, "--spill", spill, "--grace", 0.3]
    async with EmbeddedCluster(topics={"jobs": 1}) as cluster:
        async with running(
            "graceful_shutdown", "--bootstrap-servers", cluster.bootstrap_servers, *options
        ) as example:
            async with asyncio.timeout(DEADLINE * 1000 * MS):
                while len(cluster.records("jobs")) < 100:  # noqa: ASYNC110  # there is no event to wait for
                    await asyncio.sleep(MS)
                cluster.freeze_broker(0)
                frozen_at = journal.stat().st_size
                while journal.stat().st_size < frozen_at + 1000:  # noqa: ASYNC110  # there is no event to wait for
                    await asyncio.sleep(MS)
            status, out, _ = await example.finish(signal.SIGTERM)
        cluster.thaw_broker(0)

        accepted = journal.read_text().splitlines()
        spilt = [json.loads(line) for line in spill.read_text().splitlines()]
        delivered = {record.value.decode() for record in cluster.records("jobs")}
        assert status == 1
        assert f"accepted {len(accepted)}, delivered {len(accepted) - len(spilt)}, " in out
        assert delivered | {job["job"] for job in spilt} == set(accepted)
        # A job that is marked as not in the log is not there; the outcome of the other ones is unknown.
        assert not delivered & {job["job"] for job in spilt if not job["may be in the log"]}
        assert {job["may be in the log"] for job in spilt} == {True, False}


# -------------------------------------------------------------------------------------------- from_aiokafka.py


@one_loop
async def test_the_same_code_has_the_same_effect_with_both_clients():
    async with EmbeddedCluster(3) as cluster:
        for way in ("aiokafka", "aioproducer", "anew"):
            cluster.create_topic(f"moving-{way}", 3)
        status, out, err = await run("from_aiokafka", "--bootstrap-servers", cluster.bootstrap_servers)

        assert (status, err) == (0, "")
        title, *rows = [line.split("  ") for line in out.splitlines()]
        assert [word.strip() for word in title if word] == ["aiokafka", "aioproducer", "rewritten"]
        assert len(rows) == 5
        for row in rows:
            assert len({cell.strip() for cell in row if cell}) == 1, row
        logs = [
            [
                [
                    (record.key, record.value, record.headers)
                    for record in cluster.records(f"moving-{way}", partition)
                ]
                for partition in range(3)
            ]
            for way in ("aiokafka", "aioproducer", "anew")
        ]
        assert logs[0] == logs[1]
        # The last way sends all records before it waits for any: the records are the same, and
        # those of each customer are in order.
        assert logs[0] == logs[2]


@one_loop
async def test_after_the_move_aiokafka_is_no_longer_needed(tmp_path):
    async with EmbeddedCluster() as cluster:
        (tmp_path / "aiokafka.py").write_text("raise ImportError('not installed')\n")
        options = ["--bootstrap-servers", cluster.bootstrap_servers]
        hidden = {"PYTHONPATH": str(tmp_path)}
        async with running("from_aiokafka", *options, "--client", "aioproducer", **hidden) as example:
            status, out, err = await example.finish()
        assert (status, err) == (0, "")
        assert len(out.splitlines()) == 6

        async with running("from_aiokafka", *options, **hidden) as example:
            status, _, err = await example.finish()
        assert status == 2
        assert "pip install aiokafka" in err


# --------------------------------------------------------------------------------------------- wsgi_workers.py


@one_loop
async def test_each_forked_worker_has_its_own_producer_and_shutdown_loses_nothing():
    async with EmbeddedCluster(topics={"orders": 1}) as cluster:
        options = ["--bootstrap-servers", cluster.bootstrap_servers, "--port", 0, "--workers", 3]
        async with (
            running("wsgi_workers", *options) as example,
            httpx.AsyncClient(timeout=DEADLINE) as client,
        ):
            url = f"http://127.0.0.1:{await example.line('listening on port ')}"
            answers = []
            while len({answer["worker"] for answer in answers}) < 2:
                found = await asyncio.gather(
                    *(client.post(f"{url}/orders", content=b"%d" % number) for number in range(10))
                )
                assert {answer.status_code for answer in found} == {201}
                answers += [answer.json() for answer in found]
            assert (await client.get(url)).status_code == 404
            status, out, err = await example.finish(signal.SIGTERM)

        assert (status, out, err) == (0, "", "")
        assert sorted(answer["offset"] for answer in answers) == list(range(len(answers)))
        assert len(cluster.records("orders", 0)) == len(answers)


@one_loop
async def test_workers_start_without_kafka_and_report_that_nothing_was_sent():
    options = ["--bootstrap-servers", f"127.0.0.1:{dead_port()}", "--port", 0, "--patience", 0.2]
    async with running("wsgi_workers", *options) as example, httpx.AsyncClient(timeout=DEADLINE) as client:
        url = f"http://127.0.0.1:{await example.line('listening on port ')}"
        answer = await client.post(f"{url}/orders", content=b"7")
        status, _, _ = await example.finish(signal.SIGTERM)

    assert (answer.status_code, answer.json()["outcome"]) == (503, "not persisted")
    assert status == 0


# ------------------------------------------------------------------------------------------- faststream_app.py


@one_loop
async def test_a_faststream_app_publishes_with_aioproducer():
    async with EmbeddedCluster(topics={"orders": 1, "receipts": 1}) as cluster:
        options = ["--bootstrap-servers", cluster.bootstrap_servers, "--count", 3]
        async with (
            running("faststream_app", *options) as example,
            Producer(cluster.bootstrap_servers) as producer,
        ):
            for number in range(3):
                await producer.send_and_wait("orders", b'{"customer": "ann", "item": %d}' % number)
            status, out, err = await example.finish()

        assert (status, "no receipt" in err) == (0, False)
        assert [line for line in out.splitlines() if line.startswith("receipt")] == [
            f"receipt at partition 0, offset {number}" for number in range(3)
        ]
        assert [(record.key, json.loads(record.value)) for record in cluster.records("receipts", 0)] == [
            (b"ann", {"customer": "ann", "text": f"item {number} for ann"}) for number in range(3)
        ]
        # aiokafka's producer is not idempotent by default.
        assert all(batch.header.producer_id >= 0 for batch in cluster.batches("receipts", 0))


@one_loop
async def test_a_faststream_app_continues_after_a_failed_record():
    async with EmbeddedCluster(topics={"orders": 1, "receipts": 1}) as cluster:
        cluster.faults.add(PRODUCE, error=ErrorCode.POLICY_VIOLATION, topic="receipts")
        options = ["--bootstrap-servers", cluster.bootstrap_servers, "--count", 1]
        async with (
            running("faststream_app", *options) as example,
            Producer(cluster.bootstrap_servers) as producer,
        ):
            for name in ("ann", "bob"):
                await producer.send_and_wait("orders", b'{"customer": "%s", "item": 1}' % name.encode())
            status, _, err = await example.finish()

        assert status == 0
        assert "no receipt for ann: " in err
        assert "POLICY_VIOLATION" in err
        assert [record.key for record in cluster.records("receipts", 0)] == [b"bob"]
