"""The settings of the data pipeline."""

from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from postroad.settings.documents import Section

MIN_KEY = 16
"""Characters of a key of hashed addresses, at least."""


class AddressKind(Enum):
    """Form in the lake of an address."""

    HASHED = "hashed"
    PLAIN = "plain"
    NONE = "none"


class Pipeline(Section):
    """The data pipeline."""

    jars: Path | None = None
    """Folder of the jars that `postroad pipeline fetch` fetches. None: `postroad/jars` in the
    user's cache."""

    addresses: AddressKind = AddressKind.HASHED
    """Form in the lake of addresses; their domains are plain."""

    address_key: Annotated[SecretStr, Field(min_length=MIN_KEY)] | None = None
    """The key of hashed addresses: the same for all runs, or the same address has two hashes."""

    address_key_file: Path | None = None
    """File with this key, instead of it."""

    catalog: str | None = None
    """YAML file about the catalog that names the tables of the lake, with the fields of
    `spec.pipeline.catalog`; or this document itself, in braces. None: the folder of the lake."""

    catalog_driver: Path | None = None
    """Jar with the JDBC driver of the catalog's database. None: PostgreSQL's."""

    summary_file: Path | None = None
    """File to which a run writes in the end what it did, as JSON. None: none."""

    executors_file: Path | None = None
    """JSON file about the executors of a driver on Kubernetes, as the operator writes it. None:
    Spark runs as the option `--master` has it."""

    pod_name: str | None = None
    """With `executors_file`: the name of the driver's pod."""

    pod_ip: str | None = None
    """With `executors_file`: its address."""
