"""Reads the schema of delivery from files in YAML, and writes it."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import BaseModel

from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.secret_references import FolderOf, checked_file, with_files
from postroad.domain.smtp.next_hops import TlsMode
from postroad.domain.values.text import api_name
from postroad.settings.documents import read_yaml


def read_delivery(file: Path) -> DeliveryFileSettings:
    """Read and check a file of delivery; an empty one says nothing. Raises: InvalidSettings, which
    names each field that is wrong and what to write instead."""
    return checked_file(DeliveryFileSettings, read_yaml(file.read_text, file), file)


def written(settings: BaseModel, folder_of: FolderOf, fields: set[str] | None = None) -> str:
    """Return the text of a file of delivery or of intake, with files in place of references.
    Defaults are left out, so that a release which lacks a newer field reads the file of a newer one
    that does not use it. `fields`: these alone."""
    document = settings.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, include=fields
    )
    document = with_files(document, folder_of)
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


def read_hop(fields: Mapping[str, object] | str, mode: TlsMode | None) -> Hop:
    """Check a next hop, of fields or in YAML: `{host: smtp.example, port: 587}`, with a mode of TLS
    in place of its own. Raises: as `read_delivery`."""
    found = read_yaml(lambda: fields, "--relay") if isinstance(fields, str) else fields
    if isinstance(found, Mapping) and mode is not None:
        own = found.get("tls")
        tls = {**(own if isinstance(own, Mapping) else {}), "mode": api_name(mode)}
        found = {**found, "tls": tls}
    return checked_file(Hop, found, "--relay")
