"""Tokens from OIDC, Google and Azure endpoints that the tests run, and tokens from Amazon's signer."""

from __future__ import annotations

import asyncio
import base64
import datetime
import gzip
import hashlib
import hmac
import json
import math
import os
import ssl
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from azure.core.credentials import AccessToken
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from aioproducer import Producer
from aioproducer.errors import AuthenticationError, ConfigError
from aioproducer.security.sasl import OAuthBearer
from aioproducer.security.token_providers import (
    MAX_ANSWER,
    AzureTokenProvider,
    FileTokenProvider,
    FixedTokenProvider,
    GcpTokenProvider,
    MskIamTokenProvider,
    OidcTokenProvider,
)
from aioproducer.testing import EmbeddedCluster, Security
from aioproducer.types import Secret
from tests.conftest import MS
from tests.security.test_mechanisms import jws
from tests.support.certificates import authority_pem, broker_certificate, server_context, stranger
from tests.support.producing import QUICK
from tests.support.scripted_broker import HOST
from tests.support.tracebacks import assert_no_frame_shows

CANARY = "-".join(["canary", "token"])

# ----------------------------------------------------------------------------------------------------------- OIDC


class Endpoint:
    """A minimal HTTP server. It sends the `answers` one by one, and then repeats the last one."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.answers = list(answers) or [(200, {"access_token": "opaque-token", "expires_in": 60})]
        self.requests: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []
        self.url = ""
        self.hangs = False
        self.headers = ""
        """Further header lines of the answer, each with its line break."""

    @asynccontextmanager
    async def running(self, context=None) -> AsyncIterator[Endpoint]:
        tasks = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.current_task())
            try:
                await self._serve(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(accept, HOST, 0, ssl=context)
        scheme = "https" if context else "http"
        self.url = f"{scheme}://{HOST}:{server.sockets[0].getsockname()[1]}/token"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()
            await asyncio.sleep(5 * MS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = (await reader.readexactly(int(headers.get("content-length", 0)))).decode()
        self.requests.append((first, headers, parse_qs(body)))
        if self.hangs:
            await reader.read()
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        extra = "Location: http://127.0.0.1:1/\r\n" if status == 302 else self.headers
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{extra}\r\n".encode() + content
        )
        await writer.drain()


def provider_of(endpoint: Endpoint, **settings: object) -> OidcTokenProvider:
    return OidcTokenProvider(endpoint.url, "client", Secret("cl:ent secret"), retry_backoff=0.001, **settings)


async def test_client_credentials_become_a_token():
    async with Endpoint().running() as endpoint:
        token = await provider_of(endpoint, scope="kafka orders")()

    assert (token.value.reveal(), token.lifetime) == ("opaque-token", 60.0)
    [(first, headers, form)] = endpoint.requests
    assert first == "POST /token HTTP/1.1"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka orders"]}
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"client:cl:ent secret"


async def test_an_audience_is_requested():
    async with Endpoint().running() as endpoint:
        await provider_of(endpoint, audience="kafka")()

    assert endpoint.requests[0][2] == {"grant_type": ["client_credentials"], "audience": ["kafka"]}


async def test_the_certificates_to_trust_are_a_file_or_text(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text(authority_pem())
    async with Endpoint().running(server_context()) as endpoint:
        for authorities in (str(file), authority_pem()):
            token = await provider_of(endpoint, authorities=authorities)()
            assert token.value.reveal() == "opaque-token"


@pytest.mark.parametrize("content", [None, "no certificates"])
async def test_certificates_to_trust_that_cannot_be_read_are_an_error(content, tmp_path):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)

    with pytest.raises(ConfigError, match="the trusted certificates for the token endpoint can't be read"):
        await OidcTokenProvider("https://id.example", "client", "secret", authorities=str(file))()


@pytest.mark.promise("Security", "certificates are read again when files change")
async def test_a_file_of_certificates_to_trust_is_read_again_when_it_changes_and_only_then(tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text(authority_pem())
    listener = server_context()
    async with Endpoint().running(listener) as endpoint:
        provider = provider_of(endpoint, authorities=str(file))
        await provider()
        first = provider._trust.current()
        assert provider._trust.current() is first

        broker_certificate("strange").configure_cert(listener)
        with pytest.raises(AuthenticationError, match="returned no token: ConnectError"):
            await provider()
        file.write_bytes(stranger().cert_pem.bytes())

        assert (await provider()).value.reveal() == "opaque-token"


async def test_with_a_half_written_file_the_former_certificates_stay_trusted(tmp_path, caplog):
    file = tmp_path / "ca.pem"
    file.write_text(authority_pem())
    async with Endpoint().running(server_context()) as endpoint:
        provider = provider_of(endpoint, authorities=str(file))
        await provider()

        file.write_text("-----BEGIN CERT")

        assert (await provider()).value.reveal() == "opaque-token"
    assert "certificates could not be reloaded, so the previous ones remain in use" in caplog.text
    assert "token endpoint" in caplog.text


async def test_id_and_secret_are_url_encoded_if_configured():
    async with Endpoint().running() as endpoint:
        await provider_of(endpoint, url_encode=True)()

    authorization = endpoint.requests[0][1]["authorization"]
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"client:cl%3Aent+secret"


async def test_the_endpoint_must_have_a_trusted_certificate():
    trusting = ssl.create_default_context(cadata=authority_pem())
    async with Endpoint().running(server_context()) as endpoint:
        assert (await provider_of(endpoint, ssl_context=trusting)()).value.reveal() == "opaque-token"
        with pytest.raises(AuthenticationError, match="returned no token: ConnectError"):
            await provider_of(endpoint)()


@pytest.mark.parametrize(
    "url",
    [
        "http://idp.example/token",
        "file:///etc/passwd",
        "https:///token",
        "ftp://idp.example/",
        "https://user:password@idp.example/token",
        "idp.example/token",
        "http://localhost.evil.example/",
    ],
)
def test_an_endpoint_that_is_not_https_is_refused(url):
    with pytest.raises(ConfigError, match="https:// URL without a user name or password") as caught:
        OidcTokenProvider(url, "client", "secret")

    assert "password@" not in str(caught.value)


async def test_an_endpoint_with_a_server_error_is_asked_again_with_pauses():
    answers = [(503, b"down"), (500, b""), (200, {"access_token": "late"})]
    async with Endpoint(*answers).running() as endpoint:
        token = await provider_of(endpoint)()

    assert (token.value.reveal(), token.lifetime) == ("late", None)
    assert len(endpoint.requests) == 3


async def test_an_endpoint_with_lasting_server_errors_is_abandoned():
    async with Endpoint((503, b"down")).running() as endpoint:
        with pytest.raises(AuthenticationError, match="returned no token: HTTP status 503"):
            await provider_of(endpoint)()

    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("status", [302, 400, 401, 403])
async def test_a_rejection_is_final_redirects_are_not_followed_and_the_answer_is_not_shown(status):
    async with Endpoint((status, b"internal page, cl:ent secret")).running() as endpoint:
        with pytest.raises(AuthenticationError, match=f"returned no token: HTTP status {status}") as caught:
            await provider_of(endpoint)()

    assert len(endpoint.requests) == 1
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"{}",
        b"[]",
        b'"text"',
        {"access_token": 5},
        {"access_token": None},
        {"access_token": ""},
        {"access_token": "t", "expires_in": 10**400},
        {"access_token": "t", "expires_in": math.nan},
        {"access_token": "t", "expires_in": "soon"},
        b"[" * 100_000,
        b"\xff",
    ],
)
async def test_an_answer_without_a_token_is_an_error(answer):
    async with Endpoint((200, answer)).running() as endpoint:
        with pytest.raises(AuthenticationError, match="its answer is not JSON with an access_token"):
            await provider_of(endpoint)()


async def test_no_proxy_of_the_environment_is_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async with Endpoint().running() as endpoint:
        assert (await provider_of(endpoint, attempts=1)()).value.reveal() == "opaque-token"


async def test_a_huge_answer_is_not_read():
    async with Endpoint((200, b" " * (MAX_ANSWER + 1))).running() as endpoint:
        with pytest.raises(AuthenticationError, match="an answer of more than"):
            await provider_of(endpoint)()


@pytest.mark.parametrize("times", [1, 2])
async def test_a_compressed_answer_is_not_decompressed(times):
    bomb = b" " * 64 * 1024 * 1024
    for _ in range(times):
        bomb = gzip.compress(bomb, 9)
    endpoint = Endpoint((200, bomb))
    endpoint.headers = f"Content-Encoding: {', '.join(['gzip'] * times)}\r\n"
    async with endpoint.running():
        tracemalloc.start()
        try:
            with pytest.raises(AuthenticationError, match="returned no token: a compressed answer"):
                await provider_of(endpoint)()
            assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
        finally:
            tracemalloc.stop()

    [(_, headers, _)] = endpoint.requests
    assert headers["accept-encoding"] == "identity"


async def test_no_frame_of_a_request_that_is_cancelled_shows_the_part_of_the_token_that_has_arrived():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n{"access_token": "' + CANARY.encode())
        has_begun.set()
        await reader.read()
        writer.close()

    has_begun = asyncio.Event()
    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        asking = asyncio.create_task(OidcTokenProvider(f"http://{HOST}:{port}/", "client", "secret")())
        await asyncio.wait_for(has_begun.wait(), 2000 * MS)
        await asyncio.sleep(50 * MS)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await asking

    assert_no_frame_shows(caught.value, CANARY)


async def test_an_answer_declared_as_uncompressed_is_accepted():
    endpoint = Endpoint()
    endpoint.headers = "Content-Encoding: identity\r\n"
    async with endpoint.running():
        assert (await provider_of(endpoint)()).value.reveal() == "opaque-token"


async def test_a_hanging_endpoint_is_abandoned():
    endpoint = Endpoint()
    endpoint.hangs = True
    async with endpoint.running():
        with pytest.raises(AuthenticationError, match="ReadTimeout"):
            await provider_of(endpoint, read_timeout=20 * MS, attempts=2)()

    assert len(endpoint.requests) == 2


async def test_settings_alone_configure_a_provider_whose_token_is_accepted():
    security = Security(mechanisms=["OAUTHBEARER"])
    token = {"access_token": jws("svc"), "expires_in": 3600}
    async with (
        Endpoint((200, token)).running() as endpoint,
        EmbeddedCluster(security=security, topics={"t": 1}) as cluster,
        Producer(
            cluster.bootstrap_servers,
            **QUICK,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=endpoint.url,
            sasl_oauthbearer_client_credentials_client_id="svc",
            sasl_oauthbearer_client_credentials_client_secret="svc-secret",
        ) as producer,
    ):
        await producer.send_and_wait("t", b"x")

    assert ("User:svc", "OAUTHBEARER") in security.authentications
    assert len(endpoint.requests) == 1


def test_a_provider_does_not_show_its_secret():
    shown = repr(OidcTokenProvider("https://idp.example/t?x=1", "client", "secret"))

    assert shown == "<OidcTokenProvider https://idp.example>"


async def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[oidc\]'"):
        await OidcTokenProvider("https://idp.example", "client", "secret")()


# -------------------------------------------------------------------------------------------------------- MSK IAM

NOW = datetime.datetime(2026, 11, 1, 12, 30, 0, tzinfo=datetime.UTC)
KEY_ID, SECRET_KEY, SESSION_TOKEN = (
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "session+token",
)


def credentials_provider(token: str | None = None):
    from botocore.credentials import CredentialProvider, Credentials

    class Fixed(CredentialProvider):
        def load(self) -> Credentials:
            return Credentials(KEY_ID, SECRET_KEY, token)

    return Fixed()


@pytest.fixture
def stopped_clock(monkeypatch):
    from botocore import auth, compat

    naive = NOW.replace(tzinfo=None)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_, **__: naive, raising=False)
    monkeypatch.setattr(compat, "get_current_datetime", lambda *_, **__: naive, raising=False)


def signature(query: dict[str, str], session_token: str | None) -> str:
    """Compute AWS Signature Version 4 of the query from its definition."""
    signed = {name: value for name, value in query.items() if name not in ("X-Amz-Signature", "User-Agent")}
    canonical_query = "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(signed.items())
    )
    empty = hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n/\n{canonical_query}\nhost:kafka.eu-west-1.amazonaws.com\n\nhost\n{empty}"
    scope = "20261101/eu-west-1/kafka-cluster/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n20261101T123000Z\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{SECRET_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


@pytest.mark.parametrize("session_token", [None, SESSION_TOKEN])
@pytest.mark.usefixtures("stopped_clock")
def test_a_token_for_msk_is_the_golden_one(session_token):
    provider = MskIamTokenProvider(
        "eu-west-1",
        credentials_provider=credentials_provider(session_token),
        clock=lambda: NOW.timestamp() + 10,
    )
    token = provider()

    text = token.value.reveal()
    url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    query = {name: value for name, [value] in parse_qs(url.query).items()}
    assert (url.scheme, url.netloc, url.path) == ("https", "kafka.eu-west-1.amazonaws.com", "/")
    assert query.pop("User-Agent").startswith("aws-msk-iam-sasl-signer-python/")
    assert query.pop("X-Amz-Signature") == signature(query, session_token)
    assert query.pop("X-Amz-Security-Token", None) == session_token
    assert query == {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY_ID}/20261101/eu-west-1/kafka-cluster/aws4_request",
        "X-Amz-Date": "20261101T123000Z",
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
    }
    assert token.lifetime == 890.0


async def test_the_sasl_machine_accepts_a_token_for_msk():
    from tests.security.test_login import login_of

    login = login_of(MskIamTokenProvider("us-gov-west-1", credentials_provider=credentials_provider()))
    machine = await login.mechanism("broker")

    assert machine.step(None).startswith(b"n,,\x01auth=Bearer ")


@pytest.mark.parametrize("region", ["", "eu", "eu-west", "eu-west-1/../x", "evil.example/#-1", "EU-WEST-1"])
def test_an_invalid_region_is_rejected(region):
    with pytest.raises(ConfigError, match="is not an AWS region"):
        MskIamTokenProvider(region)


def test_without_amazons_signer_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[msk\]'"):
        MskIamTokenProvider("eu-west-1")()


class HttpStub(ThreadingHTTPServer):
    """A server in a thread, for libraries that block. It answers each request with `answer`."""

    def __init__(
        self, answer: bytes, content_type: str = "application/json", context: ssl.SSLContext | None = None
    ):
        super().__init__((HOST, 0), _StubHandler)
        self.answer, self.content_type = answer, content_type
        self.requests: list[tuple[str, str, dict[str, str], dict[str, list[str]]]] = []
        """Method, path, headers and form of each request."""
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"{'https' if context else 'http'}://{HOST}:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator[HttpStub]:
        thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _StubHandler(BaseHTTPRequestHandler):
    server: HttpStub

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, parse_qs(body)))
        self.send_response(200)
        self.send_header("Content-Type", self.server.content_type)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


ROLE = "arn:aws:iam::123456789012:role/orders"
ASSUMED = f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>{KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET_KEY}</SecretAccessKey>
<SessionToken>{SESSION_TOKEN}</SessionToken><Expiration>2036-11-01T12:30:00Z</Expiration>
</Credentials></AssumeRoleResult></AssumeRoleResponse>""".encode()


@pytest.fixture
def aws_credentials(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own-key")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def query_of(token: str) -> dict[str, str]:
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return {name: value for name, [value] in parse_qs(url.query).items()}


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize("external_id", [None, "external"])
def test_a_role_is_assumed_in_its_region_before_the_token_is_signed(external_id, monkeypatch):
    with HttpStub(ASSUMED, "text/xml").running() as stub:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", stub.url)
        provider = MskIamTokenProvider(
            "us-east-1",
            role_arn=ROLE,
            role_session_name="one",
            role_external_id=external_id,
            sts_region="eu-west-1",
        )
        query = query_of(provider().value.reveal())

    [(method, _, headers, form)] = stub.requests
    asked = {"RoleArn": [ROLE], "RoleSessionName": ["one"]} | (
        {"ExternalId": [external_id]} if external_id else {}
    )
    assert method == "POST"
    assert {
        name: form.get(name) for name in ("RoleArn", "RoleSessionName", "ExternalId") if name in form
    } == asked
    assert "/eu-west-1/sts/aws4_request" in headers["authorization"]
    assert query["X-Amz-Credential"].startswith(f"{KEY_ID}/")
    assert "/us-east-1/kafka-cluster/" in query["X-Amz-Credential"]
    assert query["X-Amz-Security-Token"] == SESSION_TOKEN


@pytest.mark.usefixtures("aws_credentials")
def test_a_profile_in_the_files_of_aws_signs_the_token(tmp_path, monkeypatch):
    (tmp_path / "credentials").write_text(
        f"[orders]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET_KEY}\n"
    )

    query = query_of(MskIamTokenProvider("us-east-1", profile="orders")().value.reveal())

    assert query["X-Amz-Credential"].startswith(f"{KEY_ID}/")


def test_a_provider_for_msk_shows_its_region_profile_and_role():
    provider = MskIamTokenProvider("us-east-1", profile="orders", role_arn=ROLE)

    assert repr(provider) == f"<MskIamTokenProvider us-east-1, profile orders, role {ROLE}>"
    with pytest.raises(ConfigError, match="'somewhere' is not an AWS region"):
        MskIamTokenProvider("us-east-1", sts_region="somewhere")


@pytest.mark.parametrize("answer", [(CANARY, "soon"), (CANARY.encode(), 60_000)])
def test_no_frame_shows_a_token_for_msk_that_is_malformed(answer, monkeypatch):
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    monkeypatch.setattr(MSKAuthTokenProvider, "generate_auth_token", lambda _: answer)

    with pytest.raises(TypeError) as caught:
        MskIamTokenProvider("us-east-1")()

    assert_no_frame_shows(caught.value, CANARY)


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize("wrong", [{"SessionToken": None}, {"AccessKeyId": 5}, {}])
def test_no_frame_shows_the_credentials_of_a_role(wrong, monkeypatch):
    from botocore import client, credentials

    found = {"AccessKeyId": KEY_ID, "SecretAccessKey": CANARY, "SessionToken": CANARY, **wrong}
    answer = {"Credentials": {name: value for name, value in found.items() if value is not None}}
    monkeypatch.setattr(client.BaseClient, "_make_api_call", lambda *_: answer)
    accept = credentials.Credentials

    def refuse(*given: object, **more: object) -> object:
        if CANARY in given:
            raise ValueError("refused")
        return accept(*given, **more)

    monkeypatch.setattr(credentials, "Credentials", refuse)
    provider = MskIamTokenProvider("us-east-1", role_arn=ROLE)

    with pytest.raises((KeyError, TypeError, ValueError)) as caught:
        provider()

    assert_no_frame_shows(caught.value, CANARY)


# ----------------------------------------------------------------------------------------------------------- Google

ACCOUNT = "orders@example.iam.gserviceaccount.com"


def parts_of(token: str) -> tuple[dict[str, object], dict[str, object], str]:
    """Return header, claims and signature of a token in Google's format."""
    header, claims, signature = (base64.urlsafe_b64decode(part + "==").decode() for part in token.split("."))
    return json.loads(header), json.loads(claims), signature


def service_account(directory: Path, token_url: str) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    file = directory / "account.json"
    file.write_text(
        json.dumps(
            {
                "type": "service_account",
                "project_id": "example",
                "private_key_id": "1",
                "private_key": pem,
                "client_email": ACCOUNT,
                "token_uri": token_url,
            }
        )
    )
    return file


def test_googles_access_token_is_sent_with_the_name_of_the_account(tmp_path, monkeypatch):
    answer = json.dumps({"access_token": "ya29.google", "expires_in": 3600}).encode()
    with HttpStub(answer).running() as stub:
        file = service_account(tmp_path, f"{stub.url}/token")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        provider = GcpTokenProvider()
        before = time.time()
        token = provider()
        provider()

    header, claims, signature = parts_of(token.value.reveal())
    [(method, path, _, form), _] = stub.requests
    assert (method, path) == ("POST", "/token")
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    assert header == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert (claims["sub"], claims["scope"], signature) == (ACCOUNT, "kafka", "ya29.google")
    assert before - 1 <= claims["iat"] <= before + 60
    assert token.lifetime == pytest.approx(3600, abs=60)
    assert "=" not in token.value.reveal()


def test_on_a_virtual_machine_of_google_the_metadata_server_is_asked():
    """In a separate process, because google-auth reads the address when it is imported."""
    program = (
        "from google.auth.compute_engine import Credentials\n"
        "from aioproducer.token_providers import GcpTokenProvider\n"
        "print(GcpTokenProvider(credentials=Credentials())().value.reveal())"
    )
    answer = {"access_token": "ya29.machine", "expires_in": 3600, "token_type": "Bearer", "email": ACCOUNT}
    answer |= {"aliases": ["default"], "scopes": [GcpTokenProvider.SCOPE]}
    with HttpStub(json.dumps(answer).encode()).running() as stub:
        address = stub.url.removeprefix("http://")
        found = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "GCE_METADATA_HOST": address, "GCE_METADATA_IP": address},
            capture_output=True,
            text=True,
            timeout=60_000 * MS,
            check=False,
        )

    assert found.returncode == 0, found.stderr
    _, claims, signature = parts_of(found.stdout.strip())
    assert (claims["sub"], signature) == (ACCOUNT, "ya29.machine")
    assert {headers.get("metadata-flavor") for _, _, headers, _ in stub.requests} == {"Google"}
    assert all("/service-accounts/default" in path for _, path, _, _ in stub.requests)


class GoogleUser:
    """A person's credentials, which have no account."""

    token = "ya29.user"
    expiry: datetime.datetime

    def refresh(self, request: object) -> None:
        assert callable(request)
        self.expiry = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(hours=1)


def test_credentials_without_an_account_need_the_name_of_one():
    with pytest.raises(AuthenticationError, match="google-auth's GoogleUser has no account; pass"):
        GcpTokenProvider(credentials=GoogleUser())()

    token = GcpTokenProvider(credentials=GoogleUser(), account=ACCOUNT)()
    assert parts_of(token.value.reveal())[1]["sub"] == ACCOUNT
    assert token.lifetime == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("token", [CANARY.encode(), CANARY + "\ud800"])
def test_no_frame_shows_a_token_of_google_that_is_malformed(token):
    user = GoogleUser()
    user.token = token

    with pytest.raises((TypeError, AuthenticationError)) as caught:
        OAuthBearer(GcpTokenProvider(credentials=user, account=ACCOUNT)().value, [("auth", "x")])

    assert_no_frame_shows(caught.value, CANARY)


async def test_the_sasl_machine_accepts_a_token_of_google():
    from tests.security.test_login import login_of

    login = login_of(GcpTokenProvider(credentials=GoogleUser(), account=ACCOUNT))
    machine = await login.mechanism("broker")

    assert machine.step(None).startswith(b"n,,\x01auth=Bearer ")


def test_without_googles_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.auth", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[gcp\]'"):
        GcpTokenProvider()()


# ------------------------------------------------------------------------------------------------------------ Azure

SCOPE = "https://orders.servicebus.windows.net/.default"


def test_azures_token_endpoint_returns_a_token_for_an_application(tmp_path):
    from azure.identity import ClientSecretCredential

    ca = tmp_path / "ca.pem"
    ca.write_text(authority_pem())
    answer = json.dumps({"access_token": "entra", "expires_in": 3600, "token_type": "Bearer"}).encode()
    with HttpStub(answer, context=server_context()).running() as stub:
        credential = ClientSecretCredential(
            "tenant",
            "application",
            "app-secret",
            authority=stub.url,
            disable_instance_discovery=True,
            connection_verify=str(ca),
        )
        # azure-identity first asks the authority for its endpoints.
        endpoints = {"token_endpoint": f"{stub.url}/token", "authorization_endpoint": f"{stub.url}/authorize"}
        stub.answer = json.dumps({**json.loads(answer), **endpoints, "issuer": f"{stub.url}/tenant"}).encode()
        token = AzureTokenProvider(SCOPE, credential=credential)()

    method, path, _, form = stub.requests[-1]
    assert (method, path, form["scope"], form["client_id"]) == ("POST", "/token", [SCOPE], ["application"])
    assert token.value.reveal() == "entra"
    assert token.lifetime == pytest.approx(3600, abs=60)


def test_with_a_managed_identity_of_azure_the_metadata_endpoint_is_asked(monkeypatch):
    answer = {"access_token": "managed", "expires_on": str(int(time.time()) + 3600), "token_type": "Bearer"}
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with HttpStub(json.dumps(answer | {"resource": SCOPE}).encode()).running() as stub:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{stub.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "header")
        token = AzureTokenProvider(SCOPE)()

    [(method, path, headers, _)] = stub.requests
    assert (method, urlsplit(path).path, headers["x-identity-header"]) == ("GET", "/msi/token", "header")
    assert parse_qs(urlsplit(path).query)["resource"] == ["https://orders.servicebus.windows.net"]
    assert token.value.reveal() == "managed"
    assert token.lifetime == pytest.approx(3600, abs=60)


@pytest.mark.parametrize(
    "answer",
    [AccessToken(CANARY, "1790000000"), AccessToken(CANARY.encode(), 1790000000), CANARY, {"token": CANARY}],
)
def test_no_frame_shows_a_token_of_azure_that_is_malformed(answer):
    class Credential:
        def get_token(self, scope: str) -> object:
            return answer

    with pytest.raises((TypeError, AttributeError)) as caught:
        AzureTokenProvider(SCOPE, credential=Credential())()

    assert_no_frame_shows(caught.value, CANARY)


def test_without_azures_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "azure.identity", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[azure\]'"):
        AzureTokenProvider(SCOPE)()


def test_providers_show_no_token(tmp_path):
    shown = [
        repr(GcpTokenProvider()),
        repr(GcpTokenProvider(account=ACCOUNT)),
        repr(AzureTokenProvider(SCOPE)),
        repr(FixedTokenProvider(Secret("hunter2"))),
        repr(FileTokenProvider("/run/token")),
    ]

    assert shown == [
        "<GcpTokenProvider default credentials>",
        f"<GcpTokenProvider {ACCOUNT}>",
        f"<AzureTokenProvider {SCOPE}>",
        "<FixedTokenProvider>",
        "<FileTokenProvider /run/token>",
    ]


# ---------------------------------------------------------------------------------------------------- given tokens


async def test_the_sasl_machine_accepts_a_given_token_and_a_token_in_a_file(tmp_path):
    from tests.security.test_login import login_of

    file = tmp_path / "token"
    file.write_text(f"{jws('svc')}\n")
    for provider in (FixedTokenProvider(Secret(jws("svc"))), FileTokenProvider(str(file))):
        machine = await login_of(provider).mechanism("broker")
        assert machine.step(None) == f"n,,\x01auth=Bearer {provider()}\x01\x01".encode()
