"""What each outside server's adapter says when TLS cannot be agreed on. Each error is permanent
and names what to change; the servers here end at the handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from postroad.bootstrap.cluster import connect
from postroad.errors import PostroadError, ServerError, TlsRefused
from postroad.ports.servers import Checked
from postroad.settings import from_environment
from support.certificates import Certificates

SERVERS = ("rabbitmq", "cassandra", "s3")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("others"))


@asynccontextmanager
async def listening(
    context: ssl.SSLContext | None, shown: list[object] | None = None
) -> AsyncIterator[int]:
    """Yield the port of a server that sends a line of text to every client, and notes the
    certificates that clients show."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if shown is not None:
            shown.append(writer.get_extra_info("peercert"))
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def checked(
    host: str, port: int, ca_file: Path, encryption: str = "verify-full", **variables: str
) -> dict[str, Checked]:
    """Check all three servers at one address, and read an object."""
    secure = "" if encryption == "disabled" else "s"
    servers = connect(
        from_environment(
            {
                "POSTROAD_RABBITMQ_URI": f"amqp{secure}://{host}:{port}",
                "POSTROAD_CASSANDRA_CONTACT_POINTS": host,
                "POSTROAD_CASSANDRA_PORT": str(port),
                "POSTROAD_CASSANDRA_LOCAL_DATACENTER": "datacenter1",
                "POSTROAD_CASSANDRA_TLS": encryption,
                "POSTROAD_S3_ENDPOINT": f"http{secure}://{host}:{port}",
                "POSTROAD_S3_ACCESS_KEY": "key",
                "POSTROAD_S3_SECRET_KEY": "secret",
                "POSTROAD_CA_FILE": str(ca_file),
                **variables,
            }
        )
    )
    found = dict(await servers.check())
    try:
        await servers.blobs("bucket").get("key")
    except ServerError as error:
        found["an object"] = Checked(error=error)
    except PostroadError as error:
        raise AssertionError from error
    await servers.close()
    return found


def refused(found: dict[str, Checked]) -> dict[str, str]:
    """Return the texts of the permanent errors, by server."""
    said = {}
    for server, each in found.items():
        if isinstance(each.error, TlsRefused):
            assert not each.error.transient
            assert each.error.hint
            said[server] = each.error.explain()
    return said


async def test_certificate_of_another_authority_is_refused(
    certificates: Certificates, others: Certificates
) -> None:
    async with listening(certificates.server_context()) as port:
        said = refused(await checked("localhost", port, others.authority))

    assert said.keys() == {*SERVERS, "an object"}
    assert all("is not accepted" in each for each in said.values())
    assert all("POSTROAD_CA_FILE" in each for each in said.values())


async def test_certificate_for_another_name_is_refused(certificates: Certificates) -> None:
    async with listening(certificates.server_context()) as port:
        said = refused(await checked("127.0.0.1", port, certificates.authority))

    assert said.keys() == {*SERVERS, "an object"}
    assert all("as its certificate does" in each for each in said.values())


@pytest.mark.parametrize(
    "variables",
    [{"encryption": "verify-ca"}, {"POSTROAD_CASSANDRA_TLS_NAME": "localhost"}],
    ids=["authority alone", "one name for all nodes"],
)
async def test_nodes_of_cassandra_may_have_certificates_without_their_addresses(
    certificates: Certificates, variables: dict[str, str]
) -> None:
    async with listening(certificates.server_context()) as port:
        said = refused(await checked("127.0.0.1", port, certificates.authority, **variables))

    assert said.keys() == {"rabbitmq", "s3", "an object"}


@pytest.mark.parametrize("server", SERVERS)
async def test_each_server_may_have_authorities_of_its_own(
    certificates: Certificates, others: Certificates, server: str
) -> None:
    own = {f"POSTROAD_{server}_CA_FILE".upper(): str(certificates.authority)}
    async with listening(certificates.server_context()) as port:
        said = refused(await checked("localhost", port, others.authority, "verify-ca", **own))

    trusted = {"s3", "an object"} if server == "s3" else {server}
    assert said.keys() == {*SERVERS, "an object"} - trusted


async def test_client_certificate_is_shown_to_servers_that_ask_for_one(
    certificates: Certificates,
) -> None:
    shown: list[object] = []
    context = certificates.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority)
    own = {
        f"POSTROAD_{server}_CLIENT_{part}": str(file)
        for server in ("RABBITMQ", "CASSANDRA")
        for part, file in (("CERTIFICATE", certificates.chain), ("KEY", certificates.key))
    }
    async with listening(context, shown) as port:
        await checked("localhost", port, certificates.authority)
        assert shown == []
        await checked("localhost", port, certificates.authority, **own)

    assert shown
    assert all(each == {(("commonName", "localhost"),)} for each in map(_subject, shown))


def _subject(certificate: object) -> set[object]:
    assert isinstance(certificate, dict)
    return set(certificate["subject"])


async def test_client_certificate_that_cannot_be_used_is_named(
    certificates: Certificates, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing.crt")
    own = {f"POSTROAD_{each}_CLIENT_CERTIFICATE": missing for each in ("RABBITMQ", "CASSANDRA")}
    async with listening(certificates.server_context()) as port:
        said = refused(await checked("localhost", port, certificates.authority, **own))

    assert said.keys() == {"rabbitmq", "cassandra"}
    assert all(missing in each for each in said.values())


async def test_server_without_tls_is_named(certificates: Certificates) -> None:
    async with listening(None) as port:
        said = refused(await checked("localhost", port, certificates.authority))

    assert said.keys() == {*SERVERS, "an object"}
    assert all("does not offer TLS" in each for each in said.values())


async def test_authorities_that_cannot_be_read_are_named(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with listening(certificates.server_context()) as port:
        for content in (None, "garbage"):
            file = tmp_path / "ca.crt"
            if content is not None:
                file.write_text(content)
            said = refused(await checked("localhost", port, file))

            assert said.keys() == {*SERVERS, "an object"}
            assert all(str(file) in each for each in said.values())


async def test_plain_connection_to_a_server_with_tls_is_hinted_at(
    certificates: Certificates,
) -> None:
    """The error is transient: a proxy without a server behind it closes connections in the same
    way."""
    async with listening(certificates.server_context()) as port:
        found = await checked("localhost", port, certificates.authority, "disabled")

    assert all(each.error is not None and each.error.transient for each in found.values())
    explained = {server: each.error.explain() for server, each in found.items() if each.error}
    assert "amqps://" in explained["rabbitmq"]
    assert "https://" in explained["s3"]
