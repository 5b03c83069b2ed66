"""From settings to a context: whom it trusts, what it shows, what it refuses, and when files are read again."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from aioproducer import tls
from aioproducer.errors import ConfigError, TlsError
from aioproducer.tls import TlsContext, certificate_name, handshake_error, make_context
from tests.certificates import (
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
from tests.scripted_broker import HOST, make_config

TRUST = {"ssl_truststore_certificates": authority_pem()}


def config(**settings: object):
    return make_config("broker.example:9093", security_protocol="SSL", **settings)


def shaken(context: ssl.SSLContext, server: ssl.SSLContext, name: str = HOST) -> ssl.SSLObject:
    """Both sides of a handshake in memory; returns the server's. Raises what either side raises."""
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


def test_without_a_store_the_systems_is_used(monkeypatch):
    purposes = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda _, purpose: purposes.append(purpose))
    context = make_context(config())

    assert purposes == [ssl.Purpose.SERVER_AUTH]
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_context_of_settings_refuses_an_authority_that_it_does_not_know():
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self-signed"):
        shaken(make_context(config(**TRUST)), server_context("strange"))


@pytest.mark.parametrize("kind", ["text", "file", "directory", "PKCS12"])
def test_trusted_certificates_come_as_text_file_directory_or_pkcs12(tmp_path, kind):
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
    """A list of the authority, with the right broker's certificate or without any."""
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


def test_text_may_stand_in_one_line_as_in_javas_files():
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
def test_the_clients_certificate_comes_as_text_files_or_pkcs12(tmp_path, monkeypatch, kind, memory_files):
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
    ("password", "told"), [(None, "set ssl_key_password"), ("wrong", "OpenSSL can't use it")]
)
def test_a_key_without_its_password_is_an_error_and_no_question(tmp_path, kind, password, told):
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
def test_a_file_beside_a_text_is_named_when_it_is_missing(tmp_path, kind, setting):
    given = {**own_certificates(tmp_path)[kind], setting: str(tmp_path / "missing.pem")}

    with pytest.raises(ConfigError, match=f"{setting}: .*missing.pem: No such file"):
        make_context(config(**TRUST, **given))


def test_a_pkcs12_store_with_a_wrong_password_is_told_so(tmp_path):
    given = {**own_certificates(tmp_path)["PKCS12"], "ssl_keystore_password": "wrong"}

    with pytest.raises(ConfigError, match="no PKCS12 store, or ssl_keystore_password is wrong"):
        make_context(config(**TRUST, **given))


def test_pkcs12_without_its_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)

    with pytest.raises(ConfigError, match=r"pip install 'aioproducer\[pkcs12\]'"):
        make_context(config(**TRUST, **own_certificates_without_library(tmp_path)))


def own_certificates_without_library(tmp_path) -> dict[str, str]:
    return {"ssl_keystore_location": write(tmp_path / "client.p12", b"\x30\x82\x00\x00")}


@pytest.mark.parametrize("magic", [b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"])
@pytest.mark.parametrize("setting", ["ssl_truststore_location", "ssl_keystore_location"])
def test_a_java_key_store_is_refused_with_the_way_out(tmp_path, setting, magic):
    path = write(tmp_path / "store.jks", magic + bytes(100))

    with pytest.raises(ConfigError, match=r"Java key store.*keytool -importkeystore.*PKCS12"):
        make_context(config(**{setting: path}))


@pytest.mark.parametrize(
    "setting",
    ["ssl_truststore_location", "ssl_keystore_location", "ssl_certificate_location", "ssl_crl_location"],
)
def test_a_file_that_is_missing_or_makes_no_sense_is_named(tmp_path, setting):
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=f"{setting}: .*missing.pem: No such file"):
        make_context(config(**{setting: str(missing)}))

    nonsense = write(tmp_path / "nonsense.pem", "-----BEGIN nothing")
    with pytest.raises(ConfigError, match=f"{setting}: .*nonsense.pem: OpenSSL can't use it"):
        make_context(config(**{setting: nonsense}))


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
    with pytest.raises(ConfigError, match=rf"{suite} are suites of {other} alone.*{protocol}") as caught:
        config(ssl_enabled_protocols=protocol, ssl_cipher_suites=suite)

    assert caught.value.setting == "ssl_cipher_suites"
    config(
        ssl_enabled_protocols=protocol,
        ssl_cipher_suites=f"{suite},ECDHE-RSA-AES128-GCM-SHA256,TLS_AES_256_GCM_SHA384",
    )


def test_a_suite_that_nobody_knows_is_refused_before_a_file_is_opened():
    with pytest.raises(ConfigError, match="'NO-SUCH-SUITE' is unknown"):
        config(ssl_cipher_suites="NO-SUCH-SUITE")


@pytest.mark.parametrize(
    "version", [ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1]
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_a_users_context_below_tls_1_2_is_refused(version):
    context = ssl.create_default_context()
    context.minimum_version = version

    with pytest.raises(ConfigError, match=r"minimum_version = ssl\.TLSVersion\.TLSv1_2"):
        config(ssl_context=context)


def test_a_servers_context_is_refused():
    with pytest.raises(ConfigError, match="is a server's"):
        config(ssl_context=server_context())


def test_a_users_context_is_taken_as_it_is(caplog):
    context = ssl.create_default_context()
    taken = TlsContext(config(ssl_context=context))

    assert taken.current() is context
    assert caplog.records == []


@pytest.mark.parametrize(
    ("verify", "told"), [(ssl.CERT_REQUIRED, "does not check host names"), (ssl.CERT_NONE, "certificates")]
)
def test_a_users_context_that_checks_less_is_warned_of_once(caplog, verify, told):
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
def test_protocol_versions_are_those_that_are_named(protocols, lowest, highest):
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
def test_cipher_suites_go_by_openssls_names_or_javas(suites, used):
    broker = shaken(make_context(config(**TRUST, ssl_cipher_suites=suites)), server_context())

    assert broker.cipher()[0].startswith(used)


@pytest.mark.parametrize("suite", ["TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"])
def test_other_names_of_java_are_known_too(suite):
    config(ssl_cipher_suites=suite)


# ----------------------------------------------------------------------------------------------------------- reload


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


@pytest.mark.parametrize("kind", ["one file", "two files", "PKCS12"])
def test_the_clients_certificate_is_read_again_when_it_changes(tmp_path, kind):
    taken = TlsContext(config(**TRUST, **own_certificates(tmp_path)[kind]))
    first = taken.current()
    assert taken.current() is first

    own_certificates(tmp_path, "bob")

    broker = shaken(taken.current(), server_context(wants_certificate=True))
    assert peer_name(broker) == "bob"


@pytest.mark.parametrize("first", ["cert", "key"])
def test_a_pair_of_which_one_file_has_changed_leaves_the_former_context(tmp_path, caplog, first):
    taken = TlsContext(config(**TRUST, **own_certificates(tmp_path)["two files"]))
    former = taken.current()
    bob = client_certificate("bob")
    files = {"cert": (tmp_path / "cert.pem", chain_pem(bob)), "key": (tmp_path / "key.pem", key_pem(bob))}

    write(*files.pop(first))
    assert taken.current() is former
    assert "the former ones stay" in caplog.text

    [last] = files.values()
    write(*last)
    assert peer_name(shaken(taken.current(), server_context(wants_certificate=True))) == "bob"


def test_a_list_of_revoked_certificates_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "crl.pem"
    taken = TlsContext(config(**TRUST, ssl_crl_location=write(path, revocations(of_broker=False))))
    shaken(taken.current(), server_context())

    write(path, revocations(of_broker=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        shaken(taken.current(), server_context())


def test_a_link_that_points_elsewhere_counts_as_a_change(tmp_path):
    # As Kubernetes exchanges the files of a secret.
    write(tmp_path / "old.pem", authority_pem())
    write(tmp_path / "new.pem", stranger().cert_pem.bytes())
    link = tmp_path / "ca.pem"
    link.symlink_to("old.pem")
    taken = TlsContext(config(ssl_truststore_location=str(link)))
    first = taken.current()

    link.unlink()
    link.symlink_to("new.pem")

    assert taken.current() is not first


def test_a_file_that_is_half_written_leaves_the_former_context(tmp_path, caplog):
    path = tmp_path / "ca.pem"
    write(path, authority_pem())
    taken = TlsContext(config(ssl_truststore_location=str(path)))
    first = taken.current()

    write(path, "-----BEGIN CERTIFICATE-----\nMII")
    assert taken.current() is first
    assert "the former ones stay" in caplog.text

    write(path, authority_pem() + "\n")
    assert taken.current() is not first


def test_a_file_that_never_made_sense_is_an_error_each_time(tmp_path):
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
def test_the_name_in_a_certificate_has_neither_the_roots_dot_nor_a_scope(host, name):
    assert certificate_name(host) == name


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("WRONG_VERSION_NUMBER", "the peer does not speak TLS"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "set ssl_keystore_location"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not trust who signed"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "neither TLS 1.2 nor 1.3"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "wants a client certificate, or no"),
        ("SOMETHING_ELSE", "OpenSSL says (SOMETHING_ELSE)"),
    ],
)
def test_what_openssl_says_is_explained(reason, told):
    error = ssl.SSLError(1, "")
    error.reason = reason
    explained = handshake_error("broker 1 (host:1)", error)

    assert type(explained) is TlsError
    assert told in str(explained)
    assert str(explained).startswith("broker 1 (host:1): ")
