"""The schema of the catalog that names the tables of a lake, for a file and a MailQueue."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from postroad.delivery_settings.patterns import AbsolutePath, DeliverySection
from postroad.delivery_settings.secret_references import SecretReference, checked_file, one_place
from postroad.domain.values.networks import is_secured
from postroad.settings.documents import read_yaml

NO_LOGIN = "uri has a login: name it with login"
NO_SECRETS = "properties has a secret, which pods would show: name it with login"
_SECRET = re.compile(r"(password|passwd|secret|credential|token|access-key|secret-key)$", re.I)
TOKENS = "oauth2-server-uri"
"""Property that names where an OAuth2 client gets its tokens."""

IN_CLEAR = "with login, uri and oauth2-server-uri of a REST catalog are https:// or on loopback"
OF_A_CATALOG = "a Hadoop catalog is the lake's own folder: it has no other field"


class CatalogType(StrEnum):
    """Kind of a catalog."""

    HADOOP = "Hadoop"
    REST = "REST"
    JDBC = "JDBC"


class CatalogLogin(DeliverySection):
    """The login at a catalog."""

    secret_ref: SecretReference | None = None
    """Secret with `username` and `password`: of a database, or id and secret of an OAuth2
    client."""

    folder: AbsolutePath | None = None
    """Folder with the files `username` and `password`, in place of secretRef."""

    _one_place = one_place("secret_ref", "folder")


class LakeCatalog(DeliverySection):
    """The catalog of Iceberg that names the tables of a lake, for other programs too."""

    type: CatalogType = CatalogType.HADOOP
    """Hadoop: the folder of the lake, which needs no server. REST: a server of Iceberg's REST
    protocol. JDBC: a database."""

    uri: Annotated[str, Field(min_length=1, max_length=2048, pattern="^[!-~]+$")] | None = None
    """URL of the server, `https://…`, or of the database, `jdbc:postgresql://HOST/NAME`. It has no
    login. http is for a server on loopback, or without a login."""

    warehouse: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Of REST, the name that the server has for a warehouse; absent: its default. Of JDBC, the
    folder of the tables, such as `s3a://BUCKET/lakes`; absent: the folder `tables` beside the mail
    of the queue."""

    namespace: Annotated[str, Field(max_length=128, pattern="^[a-z0-9][-_a-z0-9]*$")] | None = None
    """Namespace of the queue's tables, which no other queue has. Absent: `NAMESPACE_NAME`, by the
    names of the MailQueue; a queue in a directory needs one."""

    login: CatalogLogin | None = None
    """The login at the database or the server. Absent: none."""

    properties: Annotated[
        dict[str, Annotated[str, Field(max_length=2048)]], Field(max_length=32)
    ] = Field(default={})
    """Further properties of Iceberg's catalog, such as `scope` and `oauth2-server-uri`, without
    secrets. What the other fields say stands above them."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> LakeCatalog:
        if self.type is CatalogType.HADOOP:
            if self.model_fields_set - {"type"}:
                raise ValueError(OF_A_CATALOG)
            return self
        uri = self.uri or ""
        if self.type is CatalogType.REST and not uri.startswith(("http://", "https://")):
            raise ValueError("a REST catalog needs uri: http:// or https:// of its server")
        if self.type is CatalogType.JDBC and not uri.startswith("jdbc:"):
            raise ValueError("a JDBC catalog needs uri: jdbc: of its database")
        if "@" in uri or "password=" in uri.lower():
            raise ValueError(NO_LOGIN)
        if any(map(_SECRET.search, self.properties)):
            raise ValueError(NO_SECRETS)
        receivers = (uri, self.properties.get(TOKENS, uri))
        is_rest = self.type is CatalogType.REST
        if is_rest and self.login is not None and not all(map(is_secured, receivers)):
            raise ValueError(IN_CLEAR)
        return self


def read_catalog(text: str | None) -> LakeCatalog:
    """Read a catalog from its document in YAML, which begins with `{`, or from a file of that path;
    None: the folder of the lake. Raises: InvalidSettings, which names each field that is wrong."""
    if text is None:
        return LakeCatalog()
    is_inline = text.startswith("{")
    place = "POSTROAD_PIPELINE_CATALOG" if is_inline else text
    reading: Callable[[], str] = (lambda: text) if is_inline else Path(text).read_text
    return checked_file(LakeCatalog, read_yaml(reading, place), place)
