"""Reads the schema of delivery from files in YAML, and writes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel

from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.secret_references import FolderOf, references_of, with_files
from postroad.domain.smtp.next_hops import TlsMode
from postroad.domain.values.api_names import api_name
from postroad.errors import InvalidSettings
from postroad.settings.documents import checked, read_yaml

_Model = TypeVar("_Model", bound=BaseModel)


def read_delivery(file: Path) -> DeliveryFileSettings:
    """Read and check a file of delivery; an empty one says nothing. Raises: InvalidSettings, which
    names each field that is wrong and what to write instead."""
    return _checked(DeliveryFileSettings, read_yaml(file.read_text, file), file)


def written(settings: DeliveryFileSettings, folder_of: FolderOf) -> str:
    """Return the text of a file of delivery, with files in place of references. Defaults
    are left out, so that a release which lacks a newer field reads the file of a newer one that
    does not use it."""
    document = settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)
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
    return _checked(Hop, found, "--relay")


def _checked(model: type[_Model], document: object, file: object) -> _Model:
    found = checked(model, document, file)
    if places := [path for path, _ in references_of(found)]:
        raise InvalidSettings(
            f"{file}: {', '.join(places)}: a Secret is named in a MailQueue alone: write the folder"
            " of a login, or the file of a key or of authorities"
        )
    return found
