"""The names of cipher suites: Java's and OpenSSL's, and names that are rejected. test_tls.py shows which suites a
context uses."""

from __future__ import annotations

import ssl

import pytest

from aioproducer.errors import ConfigError
from aioproducer.security.cipher_suites import UNSAFE_SUITES, openssl_ciphers


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("HIGH", "HIGH"),
    ],
)
def test_a_suite_under_javas_name_gets_openssls_name(suite, name):
    assert openssl_ciphers((suite,)) == [name]


def test_suites_of_tls_1_3_are_left_out_and_the_others_keep_their_order():
    suites = ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256")

    assert openssl_ciphers(suites) == [suites[0], suites[2]]


@pytest.mark.parametrize(
    ("suite", "problem"),
    [
        ("NO-SUCH-SUITE", "'NO-SUCH-SUITE' is unknown"),
        ("TLS_AES_129_GCM_SHA256", "'TLS_AES_129_GCM_SHA256' is unknown"),
        ("@SECLEVEL=0", "'@SECLEVEL=0' is not the name of a cipher suite"),
        ("ALL ADH", "'ALL ADH' is not the name of a cipher suite"),
        ("NULL-SHA256", "'NULL-SHA256' contains only suites that do not encrypt"),
        (
            "ADH-AES128-SHA",
            "'ADH-AES128-SHA' contains only suites that do not encrypt or do not authenticate",
        ),
    ],
)
def test_a_suite_that_cannot_be_used_is_rejected(suite, problem):
    suites = ("ECDHE-RSA-AES128-GCM-SHA256", suite)

    with pytest.raises(ConfigError, match=problem) as caught:
        openssl_ciphers(suites)

    assert (caught.value.setting, caught.value.value) == ("ssl_cipher_suites", suites)


def test_a_group_loses_its_unsafe_suites():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    context.set_ciphers("ALL" + UNSAFE_SUITES)

    assert "auth-null" not in {suite["auth"] for suite in context.get_ciphers()}
    assert None not in {suite["symmetric"] for suite in context.get_ciphers()}
