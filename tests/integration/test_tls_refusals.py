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
async def listening(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Yield the port of a server that sends a line of text to every client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def checked(host: str, port: int, ca_file: Path, *, tls: bool = True) -> dict[str, Checked]:
    """Check all three servers at one address, and read an object."""
    secure = "s" if tls else ""
    servers = connect(
        from_environment(
            {
                "POSTROAD_RABBITMQ_URI": f"amqp{secure}://{host}:{port}",
                "POSTROAD_CASSANDRA_CONTACT_POINTS": host,
                "POSTROAD_CASSANDRA_PORT": str(port),
                "POSTROAD_CASSANDRA_LOCAL_DATACENTER": "datacenter1",
                "POSTROAD_CASSANDRA_TLS": str(tls).lower(),
                "POSTROAD_S3_ENDPOINT": f"http{secure}://{host}:{port}",
                "POSTROAD_S3_ACCESS_KEY": "key",
                "POSTROAD_S3_SECRET_KEY": "secret",
                "POSTROAD_CA_FILE": str(ca_file),
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
    """All but Cassandra, whose nodes announce each other by address."""
    async with listening(certificates.server_context()) as port:
        said = refused(await checked("127.0.0.1", port, certificates.authority))

    assert said.keys() == {"rabbitmq", "s3", "an object"}
    assert all("as its certificate does" in each for each in said.values())


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
        found = await checked("localhost", port, certificates.authority, tls=False)

    assert all(each.error is not None and each.error.transient for each in found.values())
    explained = {server: each.error.explain() for server, each in found.items() if each.error}
    assert "amqps://" in explained["rabbitmq"]
    assert "https://" in explained["s3"]
