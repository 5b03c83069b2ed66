"""A WSGI service with forked workers, as gunicorn runs Django or Flask: each worker process has its own producer.

    python examples/wsgi_workers.py --bootstrap-servers localhost:9092 --workers 2
    curl -d '{"item": 7}' localhost:8000/orders

`shared_producer` builds a worker's producer during its first request, and closes the producer when the worker exits.
The service starts even while Kafka is unavailable, and answers 503 until Kafka is back."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from aioproducer import KafkaError, Outcome
from aioproducer.blocking import shared_producer

StartResponse = Callable[[str, list[tuple[str, str]]], object]


class Orders:
    """The application. It could be a Django view as well: it keeps no producer, only the settings."""

    def __init__(self, kafka: dict[str, Any], topic: str, patience: float) -> None:
        self._kafka = kafka
        self._topic = topic
        self._patience = patience

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/orders"):
            return self._answer(start_response, "404 Not Found", {"error": "POST /orders"})
        order = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            delivery = shared_producer(**self._kafka).send(self._topic, order)
            metadata = delivery.result(timeout=self._patience)
        except (KafkaError, TimeoutError) as error:
            # After a TimeoutError the record may still be delivered.
            outcome = getattr(error, "outcome", Outcome.UNKNOWN)
            answer = {"error": type(error).__name__, "outcome": outcome.value}
            return self._answer(start_response, "503 Service Unavailable", answer)
        stored = {"partition": metadata.partition, "offset": metadata.offset, "worker": os.getpid()}
        return self._answer(start_response, "201 Created", stored)

    def _answer(self, start_response: StartResponse, status: str, answer: dict[str, Any]) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


class QuietHandler(WSGIRequestHandler):
    """A request handler that does not log requests."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def stop(number: int, frame: object) -> None:
    """Exit normally, which closes the shared producers of this process."""
    sys.exit(0)


def serve(options: argparse.Namespace) -> None:
    """Open the port, fork the workers, and stop them on SIGTERM or Ctrl-C."""
    kafka = {
        "bootstrap_servers": options.bootstrap_servers,
        "max_block_ms": options.patience * 1000,
    }
    application = Orders(kafka, options.topic, options.patience)
    with make_server("127.0.0.1", options.port, application, handler_class=QuietHandler) as server:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        workers = []
        for _ in range(options.workers):
            if (worker := os.fork()) == 0:
                server.serve_forever()
            workers.append(worker)
        print(f"listening on port {server.server_port}", flush=True)
        try:
            for worker in workers:
                os.waitpid(worker, 0)
        finally:
            for worker in workers:
                stop_worker(worker)


def stop_worker(worker: int) -> None:
    """Ask a worker to end, and wait until it has."""
    try:
        os.kill(worker, signal.SIGTERM)
        os.waitpid(worker, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it has ended


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="A WSGI service with forked workers that share nothing.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,...", help="Kafka"
    )
    parser.add_argument("--topic", default="orders", help="topic for the orders")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0: a free port")
    parser.add_argument("--workers", type=int, default=2, help="number of worker processes")
    parser.add_argument(
        "--patience", type=float, default=5, metavar="SECONDS", help="longest time a request waits for Kafka"
    )
    return parser.parse_args()


if __name__ == "__main__":
    serve(arguments())
