"""From settings to a context: trusted authorities, the client's certificate, rejected files, and the reloading
of files."""

from __future__ import annotations

import datetime
import logging
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from aioproducer.errors import ConfigError, TlsError
from aioproducer.security import tls
from aioproducer.security.tls import TlsContext, certificate_name, handshake_error, make_context
from tests.support.certificates import (
    authority,
    authority_pem,
    broker_certificate,
    chain_pem,
    client_certificate,
    key_pem,
    pkcs12_store,
    pkcs12_trust,
    server_context,
    stranger,
    write,
)
from tests.support.scripted_broker import HOST, make_config
from tests.support.tracebacks import assert_no_frame_shows

TRUST = {"ssl_truststore_certificates": authority_pem()}


def config(**settings: object):
    return make_config("broker.example:9093", security_protocol="SSL", **settings)


def shaken(context: ssl.SSLContext, server: ssl.SSLContext, name: str = HOST) -> ssl.SSLObject:
    """Run both sides of a handshake in memory, and return the server's side. Raises the error of either side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    broker = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, broker):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return broker


def peer_name(broker: ssl.SSLObject) -> str:
    [name] = [value for part in broker.getpeercert()["subject"] for key, value in part if key == "commonName"]
    return name


# ------------------------------------------------------------------------------------------------------- trust


def test_without_a_store_that_of_the_system_is_used(monkeypatch):
    purposes = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda _, purpose: purposes.append(purpose))
    context = make_context(config())

    assert purposes == [ssl.Purpose.SERVER_AUTH]
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_context_of_settings_rejects_an_unknown_authority():
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        shaken(make_context(config(**TRUST)), server_context("strange"))


@pytest.mark.parametrize("kind", ["text", "file", "directory", "PKCS12"])
def test_trusted_certificates_may_be_text_a_file_a_directory_or_pkcs12(tmp_path, kind):
    if kind == "text":
        given = TRUST
    elif kind == "file":
        given = {"ssl_truststore_location": write(tmp_path / "ca.pem", authority_pem())}
    elif kind == "directory":
        write(tmp_path / "ca.pem", authority_pem())
        subprocess.run(["openssl", "rehash", str(tmp_path)], check=True, capture_output=True)
        given = {"ssl_truststore_location": str(tmp_path)}
    else:
        store = write(tmp_path / "trust.p12", pkcs12_trust("changeit"))
        given = {"ssl_truststore_location": store, "ssl_truststore_password": "changeit"}

    shaken(make_context(config(**given)), server_context())


def test_a_brokers_own_certificate_can_be_trusted_by_itself():
    own = broker_certificate("strange").cert_chain_pems[0].bytes().decode()

    shaken(make_context(config(ssl_truststore_certificates=own)), server_context("strange"))


def revocations(*, of_broker: bool) -> bytes:
    """Return the authority's revocation list, which is empty unless it contains the correct broker's certificate."""
    now = datetime.datetime.now(datetime.UTC)
    issuer = x509.load_pem_x509_certificate(authority().cert_pem.bytes())
    key = serialization.load_pem_private_key(authority().private_key_pem.bytes(), None)
    leaf = x509.load_pem_x509_certificate(broker_certificate("right").cert_chain_pems[0].bytes())
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - datetime.timedelta(days=1))
        .next_update(now + datetime.timedelta(days=1))
    )
    if of_broker:
        crl = crl.add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(leaf.serial_number).revocation_date(now).build()
        )
    return crl.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_revoked_certificate_is_refused(tmp_path):
    given = {"ssl_crl_location": write(tmp_path / "crl.pem", revocations(of_broker=False))}
    shaken(make_context(config(**TRUST, **given)), server_context())

    write(tmp_path / "crl.pem", revocations(of_broker=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shaken(make_context(config(**TRUST, **given)), server_context())


# --------------------------------------------------------------------------------------------------- own certificate


def test_text_may_be_on_one_line_as_in_javas_files():
    leaf = client_certificate()
    given = {
        "ssl_truststore_certificates": authority_pem(),
        "ssl_keystore_certificate_chain": chain_pem(leaf) + stranger().cert_pem.bytes().decode(),
        "ssl_keystore_key": key_pem(leaf),
    }
    one_line = {name: " ".join(text.split("\n")) for name, text in given.items()}

    assert (
        peer_name(shaken(make_context(config(**one_line)), server_context(wants_certificate=True))) == "alice"
    )


def own_certificates(tmp_path, name: str = "alice") -> dict[str, dict[str, str]]:
    leaf = client_certificate(name)
    chain, key, locked = chain_pem(leaf), key_pem(leaf), key_pem(leaf, "key-secret")
    p12 = write(tmp_path / "client.p12", pkcs12_store(leaf, "store-secret"))
    return {
        "text": {"ssl_keystore_certificate_chain": chain, "ssl_keystore_key": key},
        "text, encrypted": {
            "ssl_keystore_certificate_chain": chain,
            "ssl_keystore_key": locked,
            "ssl_key_password": "key-secret",
        },
        "one file": {"ssl_keystore_location": write(tmp_path / "both.pem", key + chain)},
        "one file, encrypted": {
            "ssl_keystore_location": write(tmp_path / "locked.pem", locked + chain),
            "ssl_key_password": "key-secret",
        },
        "two files": {
            "ssl_certificate_location": write(tmp_path / "cert.pem", chain),
            "ssl_key_location": write(tmp_path / "key.pem", key),
        },
        "two files, encrypted": {
            "ssl_certificate_location": write(tmp_path / "cert.pem", chain),
            "ssl_key_location": write(tmp_path / "locked-key.pem", locked),
            "ssl_key_password": "key-secret",
        },
        "text and a key's file": {
            "ssl_keystore_certificate_chain": chain,
            "ssl_key_location": write(tmp_path / "key.pem", key),
        },
        "text and a key's file, encrypted": {
            "ssl_keystore_certificate_chain": chain,
            "ssl_key_location": write(tmp_path / "locked-key.pem", locked),
            "ssl_key_password": "key-secret",
        },
        "text and a certificate's file": {
            "ssl_certificate_location": write(tmp_path / "cert.pem", chain),
            "ssl_keystore_key": key,
        },
        "PKCS12": {"ssl_keystore_location": p12, "ssl_keystore_password": "store-secret"},
        "PKCS12, named": {
            "ssl_keystore_location": p12,
            "ssl_keystore_password": "store-secret",
            "ssl_keystore_type": "PKCS12",
        },
    }


@pytest.mark.parametrize(
    "kind",
    [
        "text",
        "text, encrypted",
        "one file",
        "one file, encrypted",
        "two files",
        "two files, encrypted",
        "text and a key's file",
        "text and a key's file, encrypted",
        "text and a certificate's file",
        "PKCS12",
        "PKCS12, named",
    ],
)
@pytest.mark.parametrize("memory_files", [True, False])
def test_the_clients_certificate_may_be_text_files_or_pkcs12(tmp_path, monkeypatch, kind, memory_files):
    if not memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
        monkeypatch.setattr(tls.tempfile, "tempdir", str(tmp_path))
    given = own_certificates(tmp_path)[kind]
    before = sorted(os.listdir(tmp_path))

    broker = shaken(make_context(config(**TRUST, **given)), server_context(wants_certificate=True))

    assert peer_name(broker) == "alice"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    "kind",
    ["text, encrypted", "one file, encrypted", "two files, encrypted", "text and a key's file, encrypted"],
)
@pytest.mark.parametrize(
    ("password", "told"),
    [
        (None, "the private key is encrypted; set ssl_key_password"),
        ("wrong", "the private key can't be decrypted; ssl_key_password is wrong"),
    ],
)
def test_a_key_without_its_password_is_an_error_and_causes_no_prompt(tmp_path, kind, password, told):
    given = {**own_certificates(tmp_path)[kind], "ssl_key_password": password}

    with pytest.raises(ConfigError, match=told) as caught:
        make_context(config(**TRUST, **given))

    assert "BEGIN" not in str(caught.value)
    assert caught.value.setting.startswith("ssl_")


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("text and a key's file", "ssl_key_location"),
        ("text and a certificate's file", "ssl_certificate_location"),
    ],
)
def test_a_missing_file_is_also_named_if_the_other_part_is_text(tmp_path, kind, setting):
    given = {**own_certificates(tmp_path)[kind], setting: str(tmp_path / "missing.pem")}

    with pytest.raises(ConfigError, match=f"{setting}: .*missing.pem: No such file"):
        make_context(config(**TRUST, **given))


def test_a_wrong_password_of_a_pkcs12_store_is_reported(tmp_path):
    given = {**own_certificates(tmp_path)["PKCS12"], "ssl_keystore_password": "wrong"}

    with pytest.raises(
        ConfigError, match="can't be opened: ssl_keystore_password is wrong, or the file is dam"
    ):
        make_context(config(**TRUST, **given))


def test_for_pkcs12_without_its_library_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[pkcs12\]'"):
        make_context(config(**TRUST, **own_certificates_without_library(tmp_path)))


def own_certificates_without_library(tmp_path) -> dict[str, str]:
    return {"ssl_keystore_location": write(tmp_path / "client.p12", b"\x30\x82\x00\x00")}


@pytest.mark.parametrize("magic", [b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"])
@pytest.mark.parametrize("setting", ["ssl_truststore_location", "ssl_keystore_location"])
def test_a_java_key_store_is_rejected_with_advice(tmp_path, setting, magic):
    path = write(tmp_path / "store.jks", magic + b"canary")

    with pytest.raises(ConfigError, match=r"Java key store.*keytool -importkeystore.*PKCS12") as caught:
        make_context(config(**{setting: path}))

    assert_no_frame_shows(caught.value, "canary")


@pytest.mark.parametrize(
    "setting",
    ["ssl_truststore_location", "ssl_keystore_location", "ssl_certificate_location", "ssl_crl_location"],
)
def test_a_missing_or_invalid_file_is_named(tmp_path, setting):
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=f"{setting}: .*missing.pem: No such file"):
        make_context(config(**{setting: str(missing)}))

    nonsense = write(tmp_path / "nonsense.pem", "-----BEGIN nothing")
    with pytest.raises(ConfigError, match=f"{setting}: .*nonsense.pem: no .* in PEM format"):
        make_context(config(**{setting: nonsense}))


DAMAGED = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n"


KINDS_OF_MISUSE = [
    "another key",
    "another key in the store",
    "another key as text",
    "no key",
    "no key in the store",
    "junk as key",
    "missing key",
    "swapped",
    "damaged",
    "junk as trust",
    "junk as store",
    "binary as trust",
    "empty",
    "damaged trust",
    "damaged text",
    "PEM as PKCS12",
    "PEM with a key as PKCS12",
    "another key than that beside the certificate",
    "another key than that in the text",
    "certificate as CRL",
]


def misused_files(tmp_path) -> dict[str, tuple[dict[str, str], str]]:
    """Return faulty settings, each with the part of its error text that follows the setting and the file."""
    authority = trustme.CA()
    cert, other = authority.issue_cert("alice.example"), authority.issue_cert("bob.example")
    chain = "".join(blob.bytes().decode() for blob in cert.cert_chain_pems)
    key, another = cert.private_key_pem.bytes().decode(), other.private_key_pem.bytes().decode()
    der = ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())
    texts = {"cert": chain, "key": key, "another": another, "junk": "junk", "damaged": DAMAGED}
    path = {name: write(tmp_path / f"{name}.pem", text) for name, text in texts.items()}
    ca, both = (
        write(tmp_path / "ca.pem", authority.cert_pem.bytes()),
        write(tmp_path / "both.pem", chain + another),
    )
    missing = str(tmp_path / "missing.pem")
    no_match = "the private key does not belong to the certificate \\(ssl_.*\\); use the key for which"
    neither = "the file is neither PEM text .* nor a PKCS12 store"
    own = {"ssl_certificate_location": path["cert"]}
    texts_given = {"ssl_keystore_certificate_chain": chain, "ssl_keystore_key": another}
    return {
        "another key": (
            {**own, "ssl_key_location": path["another"]},
            f"ssl_key_location: .*another.pem: {no_match}",
        ),
        "another key in the store": (
            {"ssl_keystore_location": both},
            f"ssl_keystore_location: .*: {no_match}",
        ),
        "another key as text": (texts_given, f"ssl_keystore_key: the text: {no_match}"),
        "no key": (
            own,
            "cert.pem: no private key .*; name the file with the key in ssl_key_location",
        ),
        "no key in the store": (
            {"ssl_keystore_location": path["cert"]},
            ": no private key in PEM format",
        ),
        "junk as key": (
            {**own, "ssl_key_location": path["junk"]},
            "ssl_key_location: .*: no private key",
        ),
        "missing key": (
            {**own, "ssl_key_location": missing},
            "ssl_key_location: .*missing.pem: No such file",
        ),
        "swapped": (
            {"ssl_certificate_location": path["key"], "ssl_key_location": path["cert"]},
            "ssl_certificate_location: .*key.pem: no certificate in PEM format",
        ),
        "damaged": (
            {"ssl_certificate_location": path["damaged"], "ssl_key_location": path["key"]},
            "ssl_certificate_location: .*OpenSSL .* can't read the certificate: it is damaged",
        ),
        "junk as trust": ({"ssl_truststore_location": path["junk"]}, neither),
        "junk as store": ({"ssl_keystore_location": path["junk"]}, neither),
        "binary as trust": ({"ssl_truststore_location": write(tmp_path / "ca.der", der)}, neither),
        "empty": ({"ssl_truststore_location": write(tmp_path / "empty.pem", "")}, "the file is empty"),
        "damaged trust": (
            {"ssl_truststore_location": path["damaged"]},
            "OpenSSL .* can't read a certificate in this file",
        ),
        "damaged text": (
            {"ssl_truststore_certificates": DAMAGED},
            "the text: OpenSSL .* can't read a certificate",
        ),
        "PEM as PKCS12": (
            {"ssl_truststore_location": ca, "ssl_truststore_type": "PKCS12"},
            "the file is PEM text; set ssl_truststore_type='PEM', or leave ssl_truststore_type out",
        ),
        "PEM with a key as PKCS12": (
            {"ssl_keystore_location": both, "ssl_keystore_type": "PKCS12"},
            "the file is PEM text; set ssl_keystore_type='PEM', or leave ssl_keystore_type out",
        ),
        "another key than that beside the certificate": (
            {
                "ssl_certificate_location": write(tmp_path / "own.pem", chain + key),
                "ssl_keystore_key": another,
            },
            f"ssl_keystore_key: the text: {no_match}",
        ),
        "another key than that in the text": (
            {"ssl_keystore_certificate_chain": chain + key, "ssl_keystore_key": another},
            f"ssl_keystore_key: the text: {no_match}",
        ),
        "certificate as CRL": (
            {"ssl_crl_location": ca},
            "ssl_crl_location: .*: no revocation list",
        ),
    }


@pytest.mark.parametrize("kind", KINDS_OF_MISUSE)
def test_a_file_of_the_wrong_kind_for_its_setting_is_recognized(tmp_path, kind):
    given, problem = misused_files(tmp_path)[kind]

    with pytest.raises(ConfigError, match=problem) as caught:
        make_context(config(**given))

    assert str(caught.value).startswith(f"{caught.value.setting}: ")
    assert "BEGIN PRIVATE KEY" not in str(caught.value).replace("(-----BEGIN PRIVATE KEY-----)", "")
    for line in lines_of_keys(tmp_path):
        assert_no_frame_shows(caught.value, line)


def lines_of_keys(directory: Path) -> list[str]:
    """Return the first line of each private key in the PEM files of a directory."""
    texts = [file.read_bytes().decode("ascii", "replace") for file in directory.glob("*.pem")]
    found = re.findall(r"BEGIN [A-Z ]*PRIVATE KEY-----\n(\S+)", "".join(texts))
    assert found
    return found


def test_the_error_for_a_pkcs12_store_without_its_password_asks_for_the_setting(tmp_path):
    given = {**own_certificates(tmp_path)["PKCS12"], "ssl_keystore_password": None}

    with pytest.raises(ConfigError, match="can't be opened without a password; set ssl_keystore_password"):
        make_context(config(**TRUST, **given))


def test_text_around_trusted_certificates_may_be_in_any_language():
    text = "Zertifizierungsstelle für Tests\n" + trustme.CA().cert_pem.bytes().decode()

    assert make_context(config(ssl_truststore_certificates=text)).cert_store_stats()["x509_ca"] == 1


# ------------------------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize("suite", ["TLS_AES_129_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA384"])
def test_a_misspelt_suite_of_tls_1_3_is_refused(suite):
    with pytest.raises(ConfigError, match=f"'{suite}' is unknown"):
        config(ssl_cipher_suites=f"TLS_AES_256_GCM_SHA384,{suite}")


@pytest.mark.parametrize(
    ("protocol", "suite", "other"),
    [
        ("TLSv1.3", "ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2"),
        ("TLSv1.2", "TLS_AES_128_GCM_SHA256", "TLSv1.3"),
    ],
)
def test_suites_of_a_protocol_that_is_not_enabled_are_refused(protocol, suite, other):
    with pytest.raises(ConfigError, match=rf"{suite} contains only suites for {other}.*{protocol}") as caught:
        config(ssl_enabled_protocols=protocol, ssl_cipher_suites=suite)

    assert caught.value.setting == "ssl_cipher_suites"
    config(
        ssl_enabled_protocols=protocol,
        ssl_cipher_suites=f"{suite},ECDHE-RSA-AES128-GCM-SHA256,TLS_AES_256_GCM_SHA384",
    )


def test_an_unknown_suite_is_rejected_before_a_file_is_opened():
    with pytest.raises(ConfigError, match="'NO-SUCH-SUITE' is unknown"):
        config(ssl_cipher_suites="NO-SUCH-SUITE")


@pytest.mark.parametrize(
    "suite", ["@SECLEVEL=0", "!aNULL", "ECDH AESGCM", "ALL;@SECLEVEL=0", "ALL:@SECLEVEL=0"]
)
def test_a_directive_of_openssl_instead_of_a_suite_is_rejected(suite):
    with pytest.raises(ConfigError, match=r"is not the name of a cipher suite.*leave out directives"):
        config(ssl_cipher_suites=["ECDHE-RSA-AES128-GCM-SHA256", suite])


@pytest.mark.parametrize("separator", [",", ":", ";", " "])
def test_a_directive_after_any_separator_of_openssl_is_rejected(separator):
    with pytest.raises(ConfigError, match="'@SECLEVEL=0' is not the name of a cipher suite"):
        config(ssl_cipher_suites=f"ALL{separator}@SECLEVEL=0")


@pytest.mark.parametrize("suite", ["aNULL", "eNULL", "ADH-AES128-SHA", "AECDH-AES256-SHA", "NULL-SHA256"])
def test_suites_without_a_certificate_or_without_encryption_are_refused(suite):
    with pytest.raises(
        ConfigError, match=f"'{suite}' contains only suites that do not encrypt or do not authenticate"
    ):
        config(ssl_cipher_suites=f"ECDHE-RSA-AES128-GCM-SHA256,{suite}")


@pytest.mark.parametrize(
    ("suites", "field", "unsafe"),
    [
        ("ALL", "auth", "auth-null"),
        ("HIGH", "auth", "auth-null"),
        ("ECDHE-RSA-AES128-GCM-SHA256;ALL", "auth", "auth-null"),
        ("aRSA", "symmetric", None),
        ("kRSA", "symmetric", None),
        ("ECDHE", "symmetric", None),
    ],
)
def test_a_group_of_suites_loses_those_without_a_certificate_or_without_encryption(suites, field, unsafe):
    # OpenSSL includes these suites in the groups; only its security level prevents their use.
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.set_ciphers(suites)
    assert unsafe in {cipher[field] for cipher in plain.get_ciphers()}

    chosen = make_context(config(ssl_cipher_suites=suites)).get_ciphers()

    assert chosen
    assert "auth-null" not in {cipher["auth"] for cipher in chosen}
    assert None not in {cipher["symmetric"] for cipher in chosen}


@pytest.mark.parametrize(
    "version", [ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1]
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_a_users_context_below_tls_1_2_is_refused(version):
    context = ssl.create_default_context()
    context.minimum_version = version

    with pytest.raises(ConfigError, match=r"minimum_version = ssl\.TLSVersion\.TLSv1_2"):
        config(ssl_context=context)


def with_suites(context: ssl.SSLContext, suites: str) -> ssl.SSLContext:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(suites)
    return context


def test_a_users_context_that_may_not_encrypt_is_rejected():
    suites = "ECDHE-ECDSA-NULL-SHA:@SECLEVEL=0"
    context = with_suites(ssl.create_default_context(cadata=authority_pem()), suites)
    name, _, bits = shaken(context, with_suites(server_context(), suites)).cipher()
    assert (name, bits) == ("ECDHE-ECDSA-NULL-SHA", 0), "OpenSSL itself accepts this suite"

    with pytest.raises(ConfigError, match=r"suites that do not encrypt.*add :!eNULL") as caught:
        config(ssl_context=context)

    assert caught.value.setting == "ssl_context"
    config(ssl_context=with_suites(context, "ECDHE:!eNULL:@SECLEVEL=0"))


def test_a_users_context_may_name_suites_that_openssls_security_level_excludes():
    context = with_suites(ssl.create_default_context(), "ECDHE")
    assert 0 in {suite["strength_bits"] for suite in context.get_ciphers()}

    config(ssl_context=context)


def test_a_servers_context_is_refused():
    with pytest.raises(ConfigError, match="is a server context"):
        config(ssl_context=server_context())


def test_a_users_context_is_used_unchanged(caplog):
    context = ssl.create_default_context()
    taken = TlsContext(config(ssl_context=context))

    assert taken.current() is context
    assert caplog.records == []


@pytest.mark.parametrize(
    ("verify", "told"), [(ssl.CERT_REQUIRED, "does not check host names"), (ssl.CERT_NONE, "certificates")]
)
def test_a_users_context_with_weaker_checks_causes_one_warning(caplog, verify, told):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = verify
    taken = TlsContext(config(ssl_context=context))
    with caplog.at_level(logging.WARNING):
        taken.current()
        taken.current()

    [record] = caplog.records
    assert told in record.getMessage()


# ---------------------------------------------------------------------------------------------------- versions, suites


@pytest.mark.parametrize(
    ("protocols", "lowest", "highest"),
    [
        ("TLSv1.2,TLSv1.3", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
        ("TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
    ],
)
def test_only_the_named_protocol_versions_are_enabled(protocols, lowest, highest):
    context = make_context(config(ssl_enabled_protocols=protocols))

    assert (context.minimum_version, context.maximum_version) == (lowest, highest)


@pytest.mark.parametrize(
    ("suites", "used"),
    [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "ECDHE-ECDSA-AES128-SHA256"),
        ("TLS_AES_128_GCM_SHA256", "TLS_"),
        ("TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_"),
    ],
)
def test_cipher_suites_have_openssls_or_javas_names(suites, used):
    broker = shaken(make_context(config(**TRUST, ssl_cipher_suites=suites)), server_context())

    assert broker.cipher()[0].startswith(used)


@pytest.mark.parametrize("suite", ["TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"])
def test_javas_other_names_are_also_known(suite):
    config(ssl_cipher_suites=suite)


# ----------------------------------------------------------------------------------------------------------- reload


@pytest.mark.promise("Security", "certificates are read again when files change")
def test_files_are_read_again_when_they_change_and_only_then(tmp_path):
    path = tmp_path / "ca.pem"
    write(path, authority_pem())
    taken = TlsContext(config(ssl_truststore_location=str(path)))
    first = taken.current()

    assert taken.current() is first

    write(path, stranger().cert_pem.bytes())
    second = taken.current()

    assert second is not first
    shaken(second, server_context("strange"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(second, server_context())


@pytest.mark.promise("Security", "certificates are read again when files change")
@pytest.mark.parametrize("kind", ["one file", "two files", "PKCS12"])
def test_the_clients_certificate_is_read_again_when_it_changes(tmp_path, kind):
    taken = TlsContext(config(**TRUST, **own_certificates(tmp_path)[kind]))
    first = taken.current()
    assert taken.current() is first

    own_certificates(tmp_path, "bob")

    broker = shaken(taken.current(), server_context(wants_certificate=True))
    assert peer_name(broker) == "bob"


@pytest.mark.parametrize("first", ["cert", "key"])
def test_if_only_one_file_of_a_pair_has_changed_the_former_context_stays(tmp_path, caplog, first):
    taken = TlsContext(config(**TRUST, **own_certificates(tmp_path)["two files"]))
    former = taken.current()
    bob = client_certificate("bob")
    files = {"cert": (tmp_path / "cert.pem", chain_pem(bob)), "key": (tmp_path / "key.pem", key_pem(bob))}

    write(*files.pop(first))
    assert taken.current() is former
    assert "the previous ones remain" in caplog.text

    [last] = files.values()
    write(*last)
    assert peer_name(shaken(taken.current(), server_context(wants_certificate=True))) == "bob"


@pytest.mark.promise("Security", "certificates are read again when files change")
def test_a_revocation_list_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "crl.pem"
    taken = TlsContext(config(**TRUST, ssl_crl_location=write(path, revocations(of_broker=False))))
    shaken(taken.current(), server_context())

    write(path, revocations(of_broker=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shaken(taken.current(), server_context())


def test_a_link_that_points_elsewhere_counts_as_a_change(tmp_path):
    # Kubernetes exchanges the files of a secret in this way.
    write(tmp_path / "old.pem", authority_pem())
    write(tmp_path / "new.pem", stranger().cert_pem.bytes())
    link = tmp_path / "ca.pem"
    link.symlink_to("old.pem")
    taken = TlsContext(config(ssl_truststore_location=str(link)))
    first = taken.current()

    link.unlink()
    link.symlink_to("new.pem")

    assert taken.current() is not first


def hash_of(certificate: bytes) -> str:
    """Return the name under which OpenSSL looks for an authority in a directory."""
    command = ["openssl", "x509", "-hash", "-noout"]
    return subprocess.run(command, input=certificate, check=True, capture_output=True).stdout.decode().strip()


@pytest.mark.promise("Security", "certificates are read again when files change")
@pytest.mark.parametrize("by_link", [False, True])
def test_a_directory_whose_file_is_rewritten_in_place_counts_as_a_change(tmp_path, by_link):
    directory = tmp_path / "trusted"
    directory.mkdir()
    path = directory / f"{hash_of(stranger().cert_pem.bytes())}.0"
    written = tmp_path / "elsewhere.pem" if by_link else path
    write(written, authority_pem())
    if by_link:
        path.symlink_to(written)
    taken = TlsContext(config(ssl_truststore_location=str(directory)))
    first = taken.current()
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(first, server_context("strange"))
    assert taken.current() is first

    before = os.stat(directory)
    write(written, stranger().cert_pem.bytes() + b"\n")
    assert os.stat(directory).st_mtime_ns == before.st_mtime_ns

    shaken(taken.current(), server_context("strange"))


def test_with_a_half_written_file_the_former_context_stays(tmp_path, caplog):
    path = tmp_path / "ca.pem"
    write(path, authority_pem())
    taken = TlsContext(config(ssl_truststore_location=str(path)))
    first = taken.current()

    write(path, "-----BEGIN CERTIFICATE-----\nMII")
    assert taken.current() is first
    assert "the previous ones remain" in caplog.text

    write(path, authority_pem() + "\n")
    assert taken.current() is not first


def test_a_file_that_was_never_valid_is_an_error_each_time(tmp_path):
    path = write(tmp_path / "ca.pem", "nothing")
    taken = TlsContext(config(ssl_truststore_location=path, ssl_truststore_type="PEM"))
    for _ in range(2):
        with pytest.raises(ConfigError, match="ssl_truststore_location"):
            taken.current()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("broker.example", "broker.example"),
        ("broker.example.", "broker.example"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_a_name_is_compared_with_the_certificate_without_its_final_dot_and_scope(host, name):
    assert certificate_name(host) == name


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("WRONG_VERSION_NUMBER", "the peer does not speak TLS"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "set ssl_keystore_location"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not trust the authority"),
        (
            "TLSV1_ALERT_PROTOCOL_VERSION",
            "does not support any TLS version that ssl_enabled_protocols allows",
        ),
        (
            "SSLV3_ALERT_HANDSHAKE_FAILURE",
            "requires a client certificate, or the two sides have no TLS version or cipher suite",
        ),
        ("SOMETHING_ELSE", "OpenSSL reports an error (SOMETHING_ELSE)"),
    ],
)
def test_openssls_errors_are_explained(reason, told):
    error = ssl.SSLError(1, "")
    error.reason = reason
    explained = handshake_error("broker 1 (host:1)", error)

    assert type(explained) is TlsError
    assert told in str(explained)
    assert str(explained).startswith("broker 1 (host:1): ")
