"""Prepares PEM text for OpenSSL, and finds out what is wrong with PEM text that OpenSSL cannot use.

The tls module calls these functions. They open no files, and their messages quote nothing from the PEM text."""

from __future__ import annotations

import re
import ssl
from typing import NamedTuple

from aioproducer.types import Secret

CERTIFICATE, CRL = "CERTIFICATE", "X509 CRL"

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----\s*")
_CERTIFICATE = re.compile(r"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_CRL = re.compile(r"-----BEGIN X509 CRL-----")
_KEY = re.compile(r"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----")
_PKCS12 = re.compile(rb"\x30(?:[\x00-\x80]|\x81.|\x82..|\x83...|\x84....)\x02\x01\x03", re.DOTALL)
"""An ASN.1 sequence that begins with version 3 (RFC 7292, 4: PFX)."""


class PemSource(NamedTuple):
    """PEM text, and the setting and the file that it comes from."""

    setting: str
    name: str
    """The path of the file; "the text" if the setting contains the PEM text itself."""
    text: Secret | None
    """The PEM text; None until the file is read."""

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Return whether the text contains the pattern."""
        return self.text is not None and pattern.search(self.text.reveal()) is not None


def in_lines(pem: str) -> str:
    """Return PEM text with the line breaks that OpenSSL requires. In a properties file, PEM text may be one line with
    spaces instead of line breaks (KIP-651)."""
    text = pem.strip()
    return text if "\n" in text else _BLOCK.sub(_block_in_lines, text)


def _block_in_lines(block: re.Match[str]) -> str:
    return "\n".join([f"-----BEGIN {block[1]}-----", *block[2].split(), f"-----END {block[1]}-----\n"])


def own_problem(
    certificate: PemSource, key: PemSource, reason: str | None, encrypted_with: str
) -> tuple[PemSource, str]:
    """Find out why OpenSSL cannot use a certificate with its key. Return whichever is faulty, and the reason.

    The text of both must already have been read.

    Args:
        certificate: this client's certificate and its chain.
        key: its private key, perhaps in the same text.
        reason: OpenSSL's reason, or None.
        encrypted_with: the setting whose password was used for the key; empty if OpenSSL did not ask for it.
    """
    if reason == "KEY_VALUES_MISMATCH":
        return key, (
            f"the private key does not belong to the certificate ({certificate.setting}: {certificate.name}); "
            "use the key for which the certificate was issued"
        )
    if not certificate.matches(_CERTIFICATE):
        return certificate, _missing("certificate", CERTIFICATE)
    if not key.matches(_KEY):
        advice = (
            "; name the file with the key in ssl_key_location"
            if key.setting == "ssl_certificate_location"
            else ""
        )
        return key, _missing("private key", "PRIVATE KEY") + advice
    if encrypted_with:
        return key, f"the private key can't be decrypted; {encrypted_with} is wrong"
    guilty, what = (key, "private key") if _is_readable(certificate) else (certificate, "certificate")
    return guilty, f"{ssl.OPENSSL_VERSION} can't read the {what}: it is damaged or of an unknown kind"


def trusted_problem(data: bytes, what: str) -> str:
    """Return the reason why OpenSSL cannot load certificates (`what` is CERTIFICATE) or revocation lists (CRL)."""
    text = data.decode("ascii", "replace")
    pattern, name = (_CERTIFICATE, "certificate") if what == CERTIFICATE else (_CRL, "revocation list")
    if not pattern.search(text):
        return _missing(name, what)
    return f"{ssl.OPENSSL_VERSION} can't read a {name} in this file: the {name} is damaged or cut off"


def has_crl(data: bytes) -> bool:
    """Return whether the data contains the beginning of a revocation list."""
    return _CRL.search(data.decode("ascii", "replace")) is not None


def store_problem(data: bytes, prefix: str, has_password: bool) -> str:
    """Return the reason why a key store or trust store cannot be read as PKCS12."""
    if not data:
        return "the file is empty"
    if b"-----BEGIN " in data:
        return f"the file is PEM text; set {prefix}_type='PEM', or leave {prefix}_type out"
    if not _PKCS12.match(data):
        return "the file is neither PEM text (-----BEGIN ...) nor a PKCS12 store"
    if not has_password:
        return f"the PKCS12 store can't be opened without a password; set {prefix}_password"
    return f"the PKCS12 store can't be opened: {prefix}_password is wrong, or the file is damaged"


def _missing(what: str, label: str) -> str:
    return f"no {what} in PEM format (-----BEGIN {label}-----) was found"


def _is_readable(certificate: PemSource) -> bool:
    assert certificate.text is not None
    text = in_lines(certificate.text.reveal()).encode("ascii", "replace").decode()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except ssl.SSLError:
        return False
    return True
