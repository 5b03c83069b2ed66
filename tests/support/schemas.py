"""confluent-kafka's serializers with one schema in each format, and a scripted schema registry."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeVar

from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (
    AsyncProtobufDeserializer,
    AsyncProtobufSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
)
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.conftest import MS

ORDER = {"item": 7, "customer": "Ann of the Hill"}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "item", "type": "long"},
            {"name": "customer", "type": "string", "default": "nobody"},
        ],
    }
)
AVRO_WITH_TEXT = AVRO.replace('"long"', '"string"')
"""A schema that is not compatible with AVRO."""
JSON_SCHEMA = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"item": {"type": "integer"}, "customer": {"type": "string"}},
        "required": ["item"],
    }
)


def _order_class() -> Any:
    """Return the class that protoc would generate for `message Order { int64 item = 1; string customer = 2; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Order")
    message.field.add(name="item", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(name="customer", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


Order = _order_class()


class Format(NamedTuple):
    """confluent-kafka's classes for one format, each called with a client; the results of async ones are awaited."""

    value: Any
    """A value that fits the schema."""
    serializer: Callable[..., Any]
    deserializer: Callable[..., Any]
    async_serializer: Callable[..., Any]
    async_deserializer: Callable[..., Any]


FORMATS = {
    "Avro": Format(
        ORDER,
        lambda client, conf=None: AvroSerializer(client, AVRO, conf=conf),
        AvroDeserializer,
        lambda client, conf=None: AsyncAvroSerializer(client, AVRO, conf=conf),
        AsyncAvroDeserializer,
    ),
    "JSON Schema": Format(
        ORDER,
        lambda client, conf=None: JSONSerializer(JSON_SCHEMA, client, conf=conf),
        lambda client: JSONDeserializer(JSON_SCHEMA, schema_registry_client=client),
        lambda client, conf=None: AsyncJSONSerializer(JSON_SCHEMA, client, conf=conf),
        lambda client: AsyncJSONDeserializer(JSON_SCHEMA, schema_registry_client=client),
    ),
    "Protobuf": Format(
        Order(**ORDER),
        lambda client, conf=None: ProtobufSerializer(Order, client, conf=conf),
        lambda client: ProtobufDeserializer(Order, {}, client),
        lambda client, conf=None: AsyncProtobufSerializer(Order, client, conf=conf),
        lambda client: AsyncProtobufDeserializer(Order, {}, client),
    ),
}


TIMEOUT = 20_000 * MS
"""The seconds after which a client asks again. Apicurio 3.3.3 may receive a request and never answer it."""


def new_client(url: str, **conf: Any) -> SchemaRegistryClient:
    """Return a blocking client; `mock://` is an in-memory registry that only this client uses."""
    return SchemaRegistryClient.new_client({"url": url, "timeout": TIMEOUT, **conf})


def new_async_client(url: str, **conf: Any) -> AsyncSchemaRegistryClient:
    """Return an async client; `mock://` is an in-memory registry that only this client uses."""
    return AsyncSchemaRegistryClient.new_client({"url": url, "timeout": TIMEOUT, **conf})


class ScriptedRegistry:
    """An HTTP server that accepts every schema, or answers with the error that a test sets."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        """The method and path of each request for a schema."""
        self.error: tuple[int, dict[str, Any]] | None = None
        """The status and body of the answer; None registers the schema."""
        self.was_asked = threading.Event()
        self.may_answer = threading.Event()
        """If a test clears it, answers are delayed until it is set."""
        self.may_answer.set()
        self.answered_in_time: list[bool] = []
        """For each request, whether `may_answer` was set before `patience` had passed."""
        self.patience = 10.0
        """Seconds after which a request is answered even if `may_answer` is not set."""
        self.url = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path.startswith("/associations"):
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        self.requests.append(f"{method} {path}")
        self.was_asked.set()
        self.answered_in_time.append(self.may_answer.wait(self.patience))
        return self.error or self.accept(path, body)

    def accept(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the answer if no error is scripted."""
        return 200, {"id": 1, "version": 1}


class RegistryInMemory(ScriptedRegistry):
    """A registry that keeps the schemas it accepts and returns them by id, so several processes can share it."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: list[dict[str, Any]] = []
        self.subjects: set[str] = set()

    def accept(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        kind, name = path.split("/")[1:3]
        if kind == "schemas":  # /schemas/ids/1
            return 200, self.schemas[int(path.split("/")[3]) - 1]
        schema = json.loads(body)
        if schema not in self.schemas:
            self.schemas.append(schema)
        self.subjects.add(name)
        return 200, {"id": self.schemas.index(schema) + 1, "version": 1}


@contextmanager
def scripted_registry() -> Iterator[ScriptedRegistry]:
    """Run a ScriptedRegistry in a thread."""
    with _served(ScriptedRegistry()) as registry:
        yield registry


@contextmanager
def registry_in_memory() -> Iterator[RegistryInMemory]:
    """Run a RegistryInMemory in a thread."""
    with _served(RegistryInMemory()) as registry:
        yield registry


Served = TypeVar("Served", bound=ScriptedRegistry)


@contextmanager
def _served(registry: Served) -> Iterator[Served]:

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._reply("POST", self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            self._reply("GET", b"")

        def _reply(self, method: str, body: bytes) -> None:
            status, answer = registry.answer(method, self.path.partition("?")[0], body)
            data = json.dumps(answer).encode()
            with suppress(ConnectionError):  # the client did not wait for the answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            registry.may_answer.set()
            server.shutdown()
            thread.join()
