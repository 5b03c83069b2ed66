"""Test certificates for an authority, brokers and clients, and some that must be rejected."""

from __future__ import annotations

import datetime
import functools
import ssl
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

HOST = "127.0.0.1"
DAY = datetime.timedelta(days=1)


@functools.cache
def authority() -> trustme.CA:
    """The trusted authority."""
    return trustme.CA(organization_name="tests")


@functools.cache
def stranger() -> trustme.CA:
    """An authority that is not trusted."""
    return trustme.CA(organization_name="strangers")


@functools.cache
def broker_certificate(kind: str = "right") -> trustme.LeafCert:
    """A certificate for 127.0.0.1 and localhost, or an expired, not yet valid, wrong-host or untrusted one."""
    now = datetime.datetime.now(datetime.UTC)
    if kind == "expired":
        return authority().issue_cert(HOST, not_before=now - 3 * DAY, not_after=now - DAY)
    if kind == "not yet valid":
        return authority().issue_cert(HOST, not_before=now + DAY, not_after=now + 3 * DAY)
    if kind == "wrong host":
        return authority().issue_cert("broker.example")
    if kind == "strange":
        return stranger().issue_cert(HOST, "localhost")
    return authority().issue_cert(HOST, "localhost")


@functools.cache
def client_certificate(name: str = "alice", *, strange: bool = False) -> trustme.LeafCert:
    return (stranger() if strange else authority()).issue_cert(f"{name}.example", common_name=name)


def server_context(kind: str = "right", *, wants_certificate: bool = False) -> ssl.SSLContext:
    """The TLS context of a broker's listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    broker_certificate(kind).configure_cert(context)
    if wants_certificate:
        authority().configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def authority_pem() -> str:
    return authority().cert_pem.bytes().decode()


def chain_pem(certificate: trustme.LeafCert) -> str:
    return "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems)


def key_pem(certificate: trustme.LeafCert, password: str | None = None) -> str:
    """The key as PEM in PKCS8, which Java can also read; encrypted if there is a password."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    encryption = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()


def pkcs12_store(certificate: trustme.LeafCert, password: str) -> bytes:
    """The key and the chain as PKCS12, as keytool or openssl store them."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    own, *others = [load_pem_x509_certificate(pem.bytes()) for pem in certificate.cert_chain_pems]
    encryption = serialization.BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"client", key, own, others or None, encryption)


def pkcs12_trust(password: str) -> bytes:
    """Only the authority's certificate, in PKCS12."""
    certificate = load_pem_x509_certificate(authority().cert_pem.bytes())
    encryption = serialization.BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"authority", None, None, [certificate], encryption)


def write(path: Path, content: str | bytes) -> str:
    """Write a file and return its path in the form that settings expect."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)
