"""James' property files are read as he reads them; what cannot be done is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.errors import InvalidSettings
from postroad.james.properties import Configuration

CASSANDRA = "cassandra.nodes=one.example:9043,two.example:9043\ncassandra.keyspace=james\n"
RABBITMQ = "uri=amqp://guest:guest@rabbitmq.example:5673/mail\n"
BLOB = """
implementation=s3
objectstorage.bucketPrefix=prod-
objectstorage.s3.endPoint=http://s3.example:8000/
objectstorage.s3.region=eu-west-1
objectstorage.s3.accessKeyId=key
objectstorage.s3.secretKey=secret
"""
AES = "encryption.aes.enable=true\nencryption.aes.password=xyz\nencryption.aes.salt=73616c7479\n"


def given(folder: Path, environment: dict[str, str] | None = None, **files: str) -> Configuration:
    for name, text in {"cassandra": CASSANDRA, "rabbitmq": RABBITMQ, "blob": BLOB, **files}.items():
        (folder / f"{name}.properties").write_text(text)
    return Configuration(folder, environment or {})


def test_servers_are_found(tmp_path: Path) -> None:
    configuration = given(tmp_path)
    cassandra, broker = configuration.cassandra(), configuration.rabbitmq()
    place = configuration.blobs()

    assert cassandra.contact_points == ("one.example", "two.example")
    assert (cassandra.port, cassandra.keyspace, cassandra.username) == (9043, "james", None)
    assert cassandra.local_datacenter == "datacenter1"
    assert (broker.host, broker.port, broker.vhost) == ("rabbitmq.example", 5673, "mail")
    assert place.s3 is not None
    assert (place.s3.endpoint, place.s3.region) == ("http://s3.example:8000/", "eu-west-1")
    assert (place.buckets, place.cipher) == (("prod-default",), None)


def test_management_user_is_the_one_that_james_logs_in_with(tmp_path: Path) -> None:
    text = f"{RABBITMQ}management.user=james\nmanagement.password=p\\,w\nvhost=other\n"
    broker = given(tmp_path, rabbitmq=text).rabbitmq()

    assert (broker.username, broker.password, broker.vhost) == ("james", "p,w", "other")


def test_forms_of_a_property_file(tmp_path: Path) -> None:
    text = (
        "# comment\n! comment\n\ncassandra.nodes : one.example\ncassandra.nodes two.example\r\n"
        "cassandra.user = ${env:USER_OF_IT}\ncassandra.password=${env:NONE:-fall=back}\n"
        "cassandra.keyspace=a\\\n    b\n"
    )
    access = given(tmp_path, {"USER_OF_IT": "james"}, cassandra=text).cassandra()

    assert access.contact_points == ("one.example", "two.example")
    assert (access.username, access.password) == ("james", "fall=back")
    assert (access.keyspace, access.port) == ("ab", 9042)


def test_a_comment_that_ends_with_a_backslash_hides_no_line(tmp_path: Path) -> None:
    nodes = "cassandra.nodes=one.example, \\ \n# or\n\n  two.example"
    found = given(
        tmp_path, cassandra=f"# in C:\\james\\\n{nodes}\n", blob=f"{BLOB}! off: \\\n{AES}"
    )

    assert found.cassandra().contact_points == ("one.example", "two.example")
    assert found.blobs().cipher is not None


def test_unset_variable_is_named(tmp_path: Path) -> None:
    text = f"{CASSANDRA}cassandra.password=${{env:NOT_THERE}}\n"
    with pytest.raises(InvalidSettings, match="NOT_THERE"):
        given(tmp_path, cassandra=text).cassandra()


def test_data_center_of_the_driver(tmp_path: Path) -> None:
    driver = 'datastax-java-driver { basic.load-balancing-policy { local-datacenter = "dc7" } }'
    (tmp_path / "cassandra-driver.conf").write_text(driver)

    assert given(tmp_path).cassandra().local_datacenter == "dc7"
    text = f"{CASSANDRA}cassandra.local.dc=dc8\n"
    assert given(tmp_path, cassandra=text).cassandra().local_datacenter == "dc8"


def test_buckets_of_blobs(tmp_path: Path) -> None:
    text = f"{BLOB}objectstorage.namespace=mails\nobjectstorage.namespace.read.fallback=old\n"

    assert given(tmp_path, blob=text).blobs().buckets == ("mails", "old")


def test_blobs_in_cassandra_with_encryption(tmp_path: Path) -> None:
    place = given(tmp_path, blob=f"implementation=cassandra\n{AES}").blobs()

    assert (place.s3, place.buckets) == (None, ())
    assert place.cipher is not None
    assert (place.cipher.password, place.cipher.salt) == ("xyz", b"salty")
    assert place.cipher.digest == "sha512"


@pytest.mark.parametrize("yes", ["true", "Yes", "on", "T", "y", "1"])
def test_what_he_takes_for_true_is_true(tmp_path: Path, yes: str) -> None:
    aes = AES.replace("enable=true", f"enable={yes}")
    assert given(tmp_path, blob=f"{BLOB}{aes}").blobs().cipher is not None


@pytest.mark.parametrize("kind", [BLOB, "implementation=cassandra\n"])
def test_compression_is_on_where_his_file_enables_it(tmp_path: Path, kind: str) -> None:
    assert not given(tmp_path, blob=kind).blobs().has_frames
    assert not given(tmp_path, blob=f"{kind}compression.enable=false\n").blobs().has_frames
    assert given(tmp_path, blob=f"{kind}compression.enable=true\n").blobs().has_frames


@pytest.mark.parametrize(
    ("blob", "named"),
    [
        ("implementation=postgres\n", "implementation: blobs in 'postgres'"),
        ("", "has no implementation"),
        (f"{BLOB}encryption.s3.sse.c.enable=true\n", "SSE-C"),
        (f"{BLOB}{AES.replace('73616c7479', 'salty')}", "hexadecimal"),
        (f"{BLOB}{AES}encryption.aes.private.key.algorithm=scrypt\n", "PBKDF2"),
        (f"{BLOB}encryption.aes.enable=true\n", r"encryption\.aes\.salt"),
    ],
)
def test_blobs_that_cannot_be_read_are_refused(tmp_path: Path, blob: str, named: str) -> None:
    with pytest.raises(InvalidSettings, match=named):
        given(tmp_path, blob=blob).blobs()


@pytest.mark.parametrize(
    ("cassandra", "named"),
    [
        ("cassandra.keyspace=james\n", r"cassandra\.nodes"),
        ("cassandra.nodes=a:1,b:2\n", "one port"),
        (f"{CASSANDRA}postroad.cassandra.tls=yes\n", "disabled, verify-ca"),
        ("cassandra.nodes=a\ncassandra.keyspace=a;b\n", "no name of a keyspace"),
    ],
)
def test_cassandra_that_cannot_be_reached_is_refused(
    tmp_path: Path, cassandra: str, named: str
) -> None:
    with pytest.raises(InvalidSettings, match=named):
        given(tmp_path, cassandra=cassandra).cassandra()


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"cassandra\.properties cannot be read"):
        Configuration(tmp_path, {}).cassandra()
