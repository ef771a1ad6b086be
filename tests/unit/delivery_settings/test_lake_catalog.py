"""Catalogs of lakes: what a document may say, and what Spark gets of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.delivery_settings.lake_catalog import LakeCatalog, read_catalog
from postroad.errors import InvalidSettings
from postroad.pipeline.spark.lake.catalogs import LakePlace, lake_place

JDBC = "type: JDBC, uri: 'jdbc:postgresql://db/lakes'"
REST = "type: REST, uri: https://c.example/api"


@pytest.fixture
def login(tmp_path: Path) -> str:
    (tmp_path / "username").write_text("me\n")
    (tmp_path / "password").write_text("pw\n")
    return f"login: {{folder: {tmp_path}}}"


def of_spark(document: str, queue: str | None = "mail.out") -> dict[str, str]:
    place = lake_place("s3a://b/mail.out", {"fs.s3a.region": "x"}, read_catalog(document), queue)
    return dict(place.of_spark())


def test_without_a_document_the_folder_of_the_lake_is_the_catalog() -> None:
    assert read_catalog(None) == LakeCatalog()
    assert of_spark("{}") == {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".cache-enabled": "false",
        ".hadoop.fs.s3a.region": "x",
        ".warehouse": "s3a://b/mail.out",
    }


def test_a_file_says_what_a_document_in_braces_does(tmp_path: Path) -> None:
    (tmp_path / "catalog.yaml").write_text("type: REST\nuri: https://c.example/api\n")

    assert read_catalog(f"{tmp_path}/catalog.yaml") == read_catalog(f"{{{REST}}}")


def test_a_database_has_its_tables_beside_the_mail_of_the_queue(login: str) -> None:
    found = of_spark(f"{{{JDBC}, {login}}}")

    assert found[".warehouse"] == "s3a://b/mail.out/tables"
    assert (found[".jdbc.user"], found[".jdbc.password"]) == ("me", "pw")
    assert of_spark(f"{{{JDBC}, warehouse: 's3a://c'}}")[".warehouse"] == "s3a://c"


def test_a_server_has_its_own_warehouse_and_an_oauth2_client(login: str) -> None:
    found = of_spark(f"{{{REST}, {login}, properties: {{scope: all, uri: other}}}}")

    assert ".warehouse" not in found
    assert (found[".scope"], found[".credential"]) == ("all", "me:pw")


@pytest.mark.parametrize("uri", ["http://127.0.0.1:8181", "http://[::1]/api", "http://localhost"])
def test_a_server_on_loopback_gets_its_login_without_tls(uri: str, login: str) -> None:
    document = f"{{type: REST, uri: '{uri}', {login}, properties: {{oauth2-server-uri: '{uri}'}}}}"

    assert of_spark(document)[".credential"] == "me:pw"


@pytest.mark.parametrize(
    ("document", "queue", "namespace"),
    [
        (f"{{{JDBC}}}", "mail.out-going", "mail_out-going"),
        (f"{{{JDBC}, namespace: own}}", "mail.out", "own"),
        (f"{{{JDBC}, namespace: own}}", None, "own"),
        ("{}", None, "lake"),
    ],
)
def test_each_queue_has_a_namespace(document: str, queue: str | None, namespace: str) -> None:
    assert lake_place("file:/lake", {}, read_catalog(document), queue).namespace == namespace


def test_a_queue_in_a_directory_needs_a_namespace() -> None:
    with pytest.raises(InvalidSettings, match="give namespace"):
        lake_place("file:/lake", {}, read_catalog(f"{{{JDBC}}}"), None)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{type: Glue}", "type: "),
        ("{namespace: own}", "a Hadoop catalog is the lake's own folder"),
        ("{type: REST}", "a REST catalog needs uri"),
        ("{type: JDBC, uri: https://c.example}", "a JDBC catalog needs uri"),
        ("{type: REST, uri: 'https://me:pw@c.example'}", "uri has a login"),
        ("{type: JDBC, uri: 'jdbc:x://db/a?PASSWORD=b'}", "uri has a login"),
        (f"{{{JDBC}, properties: {{jdbc.password: b}}}}", "properties has a secret"),
        (f"{{{REST}, properties: {{credential: 'a:b'}}}}", "properties has a secret"),
        ("{type: REST, uri: 'http://c.example', login: {folder: /a}}", "https:// or on loopback"),
        (
            f"{{{REST}, login: {{folder: /a}}, properties: {{oauth2-server-uri: 'http://c.example'}}}}",
            "https:// or on loopback",
        ),
        (f"{{{JDBC}, login: {{}}}}", "give either secretRef"),
        (
            f"{{{JDBC}, login: {{secretRef: {{name: a}}}}}}",
            "a Secret is named in a MailQueue alone",
        ),
        (f"{{{JDBC}, uris: a}}", "uris: there is no such field: did you mean uri"),
        ("/nowhere/catalog.yaml", "cannot be read"),
    ],
)
def test_what_cannot_work_is_refused_by_its_field(document: str, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        read_catalog(document)


def test_place_of_a_lake_shows_no_key_of_its_store() -> None:
    assert "secret" not in repr(LakePlace("s3a://b/q", {"fs.s3a.secret.key": "secret"}))
