"""Reads the property files of James' configuration directory: his servers, and how he keeps blobs.

Format: Apache Commons Configuration, with `${env:NAME}`. A secret stands in these files or in the
environment, never in an argument. Source: Apache James, cassandra.properties,
blob.properties, rabbitmq.properties."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.rabbitmq.connection import Access as RabbitMQAccess
from postroad.adapters.s3.clients import Access as S3Access
from postroad.domain.smtp.next_hops import parse_host_port
from postroad.errors import BlobsUnavailable, CredentialsRefused, InvalidSettings
from postroad.tls import ClientTls, Encryption

_PROPERTY = re.compile(r"((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
_ENVIRONMENT = re.compile(r"\$\{env:([^}:]+)(?::-([^}]*))?\}")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

DEFAULT_PORT = 9042
DATACENTER = re.compile(r"local-datacenter\s*[=:]\s*\"?([\w.-]+)")
"""In cassandra-driver.conf, the one value of that file that is read."""

_KEY_ALGORITHM = re.compile(r"PBKDF2WithHmac(SHA(?:1|224|256|384|512))")


@dataclass(frozen=True, slots=True)
class Cipher:
    """Values from which the key of encrypted blobs is derived; `digest` is HMAC's. No repr."""

    password: str = field(repr=False)
    salt: bytes = field(repr=False)
    digest: str = "sha512"


@dataclass(frozen=True, slots=True)
class BlobPlace:
    """Store of the blobs: `s3`, with its buckets as they are read, or the Cassandra tables.
    `has_frames`: a blob may be compressed with Zstd."""

    s3: S3Access | None
    buckets: tuple[str, ...] = ()
    cipher: Cipher | None = None
    has_frames: bool = False


class Properties:
    """One property file. Its repr has no value."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """Raises: InvalidSettings."""
        self._path = path
        self._values: dict[str, list[str]] = {}
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(
                f"{path} cannot be read: {error}",
                hint="give James' configuration directory as --conf",
            ) from error
        # Comments first: a backslash at the end of one continues nothing.
        lines = [line for line in map(str.strip, text.split("\n")) if line and line[0] not in "#!"]
        for line in _CONTINUED.sub(r"\1", "\n".join(lines)).split("\n"):
            if found := _PROPERTY.fullmatch(line):
                name, value = _unescaped(found[1]), self._filled(found[2], environment)
                self._values.setdefault(name, []).append(value)

    def _filled(self, value: str, environment: Mapping[str, str]) -> str:
        def of_environment(found: re.Match[str]) -> str:
            given = environment.get(found[1], found[2])
            if given is None:
                raise InvalidSettings(
                    f"{self._path} takes a value from the variable {found[1]}, which is not set",
                    hint="set it as James' own process has it",
                )
            return given

        return _ENVIRONMENT.sub(of_environment, value)

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return a value, the first of several; an empty one is none."""
        return _unescaped(self._values.get(name, [""])[0]) or default

    def all(self, name: str) -> list[str]:
        """Return the values of a list: a line each, or with commas between them."""
        parts = [part for value in self._values.get(name, []) for part in value.split(",")]
        return [part.strip() for part in parts if part.strip()]

    def required(self, name: str) -> str:
        """Raises: InvalidSettings."""
        value = self.get(name)
        if value is None:
            raise InvalidSettings(f"{self._path} has no {name}, which James needs too")
        return value

    def is_true(self, name: str, default: bool = False) -> bool:
        """Return whether Commons Lang, by which James reads it, takes a value for true."""
        value = (self.get(name) or str(default)).lower()
        return value in {"true", "yes", "on", "t", "y", "1"}

    def refused(self, name: str, why: str) -> InvalidSettings:
        return InvalidSettings(f"{self._path}: {name}: {why}")


@contextmanager
def as_in(file: str) -> Iterator[None]:
    """Name the file in errors of a server that refuses James' user or place: the queue to move to
    has servers of its own. Raises: CredentialsRefused, BlobsUnavailable."""
    try:
        yield
    except (CredentialsRefused, BlobsUnavailable) as error:
        hint = f"the server is James', and what was refused stands in {file}"
        raise type(error)(str(error), hint=hint) from error


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _CONTROLS.get(found[1], found[1]), text)


class Configuration:
    """James' configuration directory."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environment = os.environ if environment is None else environment

    def _file(self, name: str) -> Properties:
        return Properties(self._folder / name, self._environment)

    def cassandra(self) -> CassandraAccess:
        """Raises: InvalidSettings."""
        given = self._file("cassandra.properties")
        hosts = [parse_host_port(each, DEFAULT_PORT) for each in given.all("cassandra.nodes")]
        if not hosts or len({port for _, port in hosts}) > 1:
            raise given.refused("cassandra.nodes", "name the hosts, all with one port")
        keyspace = given.get("cassandra.keyspace", "apache_james") or ""
        if not re.fullmatch(r"\w{1,48}", keyspace):
            raise given.refused("cassandra.keyspace", "no name of a keyspace")
        tls, known = given.get("postroad.cassandra.tls", "disabled"), [e.value for e in Encryption]
        if tls not in known:
            raise given.refused("postroad.cassandra.tls", f"write one of {', '.join(known)}")
        return CassandraAccess(
            contact_points=tuple(host for host, _ in hosts),
            port=hosts[0][1],
            local_datacenter=given.get("cassandra.local.dc") or self._datacenter(),
            keyspace=keyspace,
            username=given.get("cassandra.user"),
            password=given.get("cassandra.password"),
            encryption=Encryption(tls),
            tls=ClientTls(_authorities(given)),
        )

    def _datacenter(self) -> str:
        driver = self._folder / "cassandra-driver.conf"
        found = DATACENTER.search(driver.read_text("utf-8")) if driver.exists() else None
        return found[1] if found else "datacenter1"

    def rabbitmq(self) -> RabbitMQAccess:
        """Return the access to his broker; he logs in as the user of its management API. Raises:
        InvalidSettings."""
        given = self._file("rabbitmq.properties")
        access = RabbitMQAccess.from_uri(
            given.required("uri"),
            username=given.get("management.user"),
            password=given.get("management.password"),
            tls=ClientTls(_authorities(given)),
        )
        return replace(access, vhost=given.get("vhost") or access.vhost)

    def blobs(self) -> BlobPlace:
        """Raises: InvalidSettings."""
        given = self._file("blob.properties")
        kind = given.required("implementation")
        cipher = _cipher(given) if given.is_true("encryption.aes.enable") else None
        has_frames = given.is_true("compression.enable")
        if kind == "cassandra":
            return BlobPlace(None, cipher=cipher, has_frames=has_frames)
        if kind not in {"s3", "objectstorage"}:
            raise given.refused("implementation", f"blobs in {kind!r} cannot be read here")
        if given.is_true("encryption.s3.sse.c.enable"):
            raise given.refused("encryption.s3.sse.c.enable", "keys of SSE-C cannot be given here")
        prefix = given.get("objectstorage.bucketPrefix") or ""
        default = given.get("objectstorage.namespace") or f"{prefix}default"
        fallback = given.get("objectstorage.namespace.read.fallback")
        access = S3Access(
            endpoint=given.required("objectstorage.s3.endPoint"),
            region=given.get("objectstorage.s3.region", "us-east-1") or "",
            access_key=given.required("objectstorage.s3.accessKeyId"),
            secret_key=given.required("objectstorage.s3.secretKey"),
            ca_file=_authorities(given),
        )
        buckets = (default, *([fallback] if fallback else []))
        return BlobPlace(access, buckets, cipher, has_frames)


def _authorities(given: Properties) -> Path | None:
    """Return the file of certificate authorities: James' own are in a Java key store."""
    value = given.get("postroad.ca.file")
    return None if value is None else Path(value)


def _cipher(given: Properties) -> Cipher:
    name = "encryption.aes.private.key.algorithm"
    found = _KEY_ALGORITHM.fullmatch(given.get(name, "PBKDF2WithHmacSHA512") or "")
    if found is None:
        raise given.refused(name, "a key is derived by PBKDF2WithHmacSHA512 or another SHA alone")
    try:
        salt = bytes.fromhex(given.required("encryption.aes.salt"))
    except ValueError:
        raise given.refused("encryption.aes.salt", "hexadecimal digits in pairs") from None
    return Cipher(given.required("encryption.aes.password"), salt, found[1].lower())
