"""PEM text: the line breaks that OpenSSL requires, and the text at fault, with the reason, if OpenSSL rejects it."""

from __future__ import annotations

import re

import pytest

from aioproducer.security.pem import (
    CERTIFICATE,
    CRL,
    PemSource,
    has_crl,
    in_lines,
    own_problem,
    store_problem,
    trusted_problem,
)
from aioproducer.types import Secret
from tests.support.certificates import authority_pem, chain_pem, client_certificate, key_pem, pkcs12_trust

LEAF = client_certificate()
DAMAGED = re.sub(r"\n[^-\n]+\n", "\nAAAA\n", chain_pem(LEAF), count=1)
REVOKED = b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"


def certificate(text: str | None) -> PemSource:
    return PemSource("ssl_certificate_location", "client.pem", None if text is None else Secret(text))


def key(text: str | None, setting: str = "ssl_key_location") -> PemSource:
    return PemSource(setting, "client.key", None if text is None else Secret(text))


# ----------------------------------------------------------------------------------------------------- the text


def test_line_breaks_are_restored_in_blocks_on_one_line():
    for pem in (authority_pem(), chain_pem(LEAF) + key_pem(LEAF), key_pem(LEAF, "key-secret")):
        one_line = " ".join(pem.split("\n"))

        assert in_lines(one_line) == pem


def test_text_with_line_breaks_keeps_them_and_text_that_is_not_pem_is_not_changed():
    with_bags = f"Bag Attributes: <No Attributes>\n{authority_pem()}"

    assert in_lines(f"\n  {with_bags}") == with_bags.strip()
    assert in_lines("no PEM at all") == "no PEM at all"


# -------------------------------------------------------------------------------- texts that OpenSSL rejects


@pytest.mark.parametrize(
    ("given", "reason", "encrypted_with", "guilty", "told"),
    [
        (
            (certificate(chain_pem(LEAF)), key(key_pem(LEAF))),
            "KEY_VALUES_MISMATCH",
            "",
            "ssl_key_location",
            r"does not belong to the certificate \(ssl_certificate_location: client.pem\)",
        ),
        (
            (certificate("nothing"), key(key_pem(LEAF))),
            None,
            "",
            "ssl_certificate_location",
            "no certificate in PEM format",
        ),
        (
            (certificate(chain_pem(LEAF)), key(chain_pem(LEAF))),
            None,
            "",
            "ssl_key_location",
            r"no private key in PEM format \(-----BEGIN PRIVATE KEY-----\) was found$",
        ),
        (
            (certificate(chain_pem(LEAF)), key(chain_pem(LEAF), "ssl_certificate_location")),
            None,
            "",
            "ssl_certificate_location",
            "; name the file with the key in ssl_key_location$",
        ),
        (
            (certificate(chain_pem(LEAF)), key(key_pem(LEAF, "key-secret"))),
            None,
            "ssl_key_password",
            "ssl_key_location",
            "can't be decrypted; ssl_key_password is wrong",
        ),
        (
            (certificate(DAMAGED), key(key_pem(LEAF))),
            None,
            "",
            "ssl_certificate_location",
            "can't read the certificate: it is damaged",
        ),
        (
            (certificate(chain_pem(LEAF)), key(key_pem(LEAF)[:-60])),
            None,
            "",
            "ssl_key_location",
            "can't read the private key: it is damaged",
        ),
    ],
)
def test_the_faulty_text_is_named_with_the_reason(given, reason, encrypted_with, guilty, told):
    source, why = own_problem(*given, reason, encrypted_with)

    assert source.setting == guilty
    assert re.search(told, why)


def test_a_text_that_is_still_in_its_file_matches_nothing():
    everything = re.compile("")

    assert certificate("").matches(everything)
    assert not certificate(None).matches(everything)


@pytest.mark.parametrize(
    ("data", "what", "told"),
    [
        (b"", CERTIFICATE, "no certificate in PEM format (-----BEGIN CERTIFICATE-----) was found"),
        (REVOKED, CERTIFICATE, "no certificate in PEM format"),
        (
            authority_pem().encode(),
            CRL,
            "no revocation list in PEM format (-----BEGIN X509 CRL-----) was found",
        ),
        (
            DAMAGED.encode(),
            CERTIFICATE,
            "can't read a certificate in this file: the certificate is damaged or cut off",
        ),
        (
            REVOKED,
            CRL,
            "can't read a revocation list in this file: the revocation list is damaged or cut off",
        ),
        (
            "-----BEGIN TRUSTED CERTIFICATE-----é".encode("latin-1"),
            CERTIFICATE,
            "the certificate is damaged or cut off",
        ),
    ],
)
def test_problems_of_trusted_certificates_and_revocation_lists_are_named(data, what, told):
    assert told in trusted_problem(data, what)


def test_a_revocation_list_is_found_behind_certificates_and_bytes_that_are_not_text():
    assert has_crl(b"\xff" + authority_pem().encode() + REVOKED)
    assert not has_crl(authority_pem().encode())


@pytest.mark.parametrize(
    ("data", "has_password", "told"),
    [
        (b"", True, "the file is empty"),
        (
            authority_pem().encode(),
            True,
            "the file is PEM text; set ssl_truststore_type='PEM', or leave ssl_truststore_type",
        ),
        (b"\xfe\xed\xfe\xed", True, "neither PEM text (-----BEGIN ...) nor a PKCS12 store"),
        (pkcs12_trust("secret"), False, "can't be opened without a password; set ssl_truststore_password"),
        (pkcs12_trust("secret"), True, "ssl_truststore_password is wrong, or the file is damaged"),
    ],
)
def test_the_reason_why_a_pkcs12_store_cannot_be_read_is_named(data, has_password, told):
    assert told in store_problem(data, "ssl_truststore", has_password)


@pytest.mark.parametrize(
    "length", [b"\x30", b"\x80", b"\x81\x99", b"\x82\x99\x99", b"\x83" + b"\x99" * 3, b"\x84" + b"\x99" * 4]
)
def test_a_pkcs12_store_is_recognized_by_its_beginning_however_long_it_is(length):
    assert "without a password" in store_problem(b"\x30" + length + b"\x02\x01\x03", "ssl_keystore", False)
    assert "nor a PKCS12 store" in store_problem(b"\x30" + length + b"\x02\x01\x01", "ssl_keystore", False)
