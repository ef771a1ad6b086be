"""Key stores of a run: Java trusts what the PEM files name, and nothing is less checked."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12

from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.s3.clients import Access as S3Access
from postroad.errors import InvalidSettings, TlsRefused
from postroad.pipeline.java.key_stores import PASSWORD, KeyStores, key_stores
from postroad.pipeline.spark.spark_conf import cassandra_settings, java_settings
from postroad.tls import ClientTls, Encryption
from support.certificates import Certificates

ACCESS = CassandraAccess(("127.0.0.1",), 9042, "datacenter1", "postroad")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def stores(tmp_path: Path) -> KeyStores:
    return KeyStores(tmp_path)


def test_a_store_has_the_authorities_of_its_file_and_no_others(
    made: Certificates, stores: KeyStores
) -> None:
    path = stores.trusted("cassandra", ClientTls(made.authority))

    found = pkcs12.load_pkcs12(path.read_bytes(), PASSWORD.encode())
    assert [each.certificate.subject.rfc4514_string() for each in found.additional_certs] == [
        "CN=authority"
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_file_a_store_has_the_authorities_of_the_system(
    made: Certificates, stores: KeyStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the folder where there is no file, each once, without unreadable ones."""
    folder = tmp_path / "certs"
    folder.mkdir()
    for name in ("1.0", "2.0"):
        (folder / name).write_bytes(made.authority.read_bytes())
    (folder / "3.0").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    system = ssl.get_default_verify_paths()._replace(cafile="", capath=str(folder))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: system)

    path = stores.trusted("s3", ClientTls())

    assert len(pkcs12.load_pkcs12(path.read_bytes(), PASSWORD.encode()).additional_certs) == 1
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(TlsRefused, match="no certificate authorities"):
        stores.trusted("s3", ClientTls())


def test_the_certificate_that_is_shown_comes_with_its_key(
    made: Certificates, stores: KeyStores
) -> None:
    path = stores.shown("cassandra", made.chain, made.key)

    found = pkcs12.load_pkcs12(path.read_bytes(), PASSWORD.encode())
    assert found.key is not None
    assert found.cert is not None
    assert found.cert.certificate.subject.rfc4514_string() == "CN=localhost"


@pytest.mark.parametrize("tls", ["authority", "key"])
def test_a_file_that_cannot_be_used_is_named(
    tls: str, made: Certificates, stores: KeyStores, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    attempts: dict[str, Callable[[], Path]] = {
        "authority": lambda: stores.trusted("cassandra", ClientTls(wrong)),
        "key": lambda: stores.shown("cassandra", made.chain, wrong),
    }
    with pytest.raises(TlsRefused, match=r"wrong\.pem|tls\.crt"):
        attempts[tls]()


def test_the_stores_go_with_the_run(made: Certificates) -> None:
    with key_stores() as stores:
        path = stores.trusted("cassandra", ClientTls(made.authority))
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()


def test_a_connection_waits_for_a_busy_cassandra(stores: KeyStores) -> None:
    """It reads the tables of all keyspaces first. After the connector's own 5 s it would go on
    without them, and find no keyspace."""
    found = cassandra_settings(ACCESS, stores)

    assert int(found["spark.cassandra.connection.timeoutMS"]) >= 30_000


def test_the_connector_encrypts_exactly_when_settings_ask_for_it(
    made: Certificates, stores: KeyStores
) -> None:
    plain = cassandra_settings(ACCESS, stores)
    encrypted = replace(
        ACCESS, encryption=Encryption.VERIFY_CA, tls=ClientTls(made.authority, made.chain, made.key)
    )
    found = cassandra_settings(encrypted, stores)

    assert not any("ssl" in name for name in plain)
    assert found["spark.cassandra.connection.ssl.enabled"] == "true"
    assert found["spark.cassandra.connection.ssl.clientAuth.enabled"] == "true"
    assert all("_CBC_" not in each for each in found.values())
    without = replace(encrypted, tls=ClientTls(made.authority))
    assert cassandra_settings(without, stores)[
        "spark.cassandra.connection.ssl.clientAuth.enabled"
    ] == "false"  # fmt: skip


def test_names_that_the_connector_does_not_check_are_refused(
    made: Certificates, stores: KeyStores
) -> None:
    full = replace(ACCESS, encryption=Encryption.VERIFY_FULL, tls=ClientTls(made.authority))
    with pytest.raises(
        InvalidSettings, match="checks the authority of a certificate, and no names"
    ):
        cassandra_settings(full, stores)


@pytest.mark.parametrize("endpoint", ["https://store.example.org", None])
def test_java_trusts_the_authorities_of_an_encrypted_store(
    endpoint: str | None, made: Certificates, stores: KeyStores
) -> None:
    access = S3Access(endpoint, "us-east-1", ca_file=made.authority)
    (options,) = java_settings(access, stores).values()
    assert f"-Djavax.net.ssl.trustStore={stores.folder}/s3-authorities.p12" in options
    assert "-Duser.timezone=UTC" in options
    (options,) = java_settings(S3Access("http://store", "us-east-1"), stores).values()
    assert "trustStore" not in options
    (options,) = java_settings(access, stores, ("-Xbrief",)).values()
    assert options.index("-Xbrief") < options.index("-Djavax.net.ssl.trustStore=")
