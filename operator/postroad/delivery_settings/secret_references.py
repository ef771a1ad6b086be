"""Secrets that a MailQueue names in what it decides about delivery. Its workers have them as files,
and their file of delivery names these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from postroad.delivery_settings.patterns import OBJECT_NAME_PATTERN
from postroad.delivery_settings.sections import DeliverySection

REFERENCE = "secretRef"


class SecretReference(DeliverySection):
    """Names a Secret in the namespace of the resource that names it."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
    """Name of the Secret."""


class SecretKeyReference(SecretReference):
    """Names a key of a Secret in the namespace of the MailQueue."""

    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key of the Secret that has the value."""


def secrets_of(part: object, path: str = "") -> Iterator[tuple[str, SecretReference]]:
    """Yield each Secret that a part of the schema names, with its place (`signing[0].secretRef`);
    one that is named twice, twice."""
    if isinstance(part, SecretReference):
        yield path, part
    elif isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            place = f"{path}.{field.alias}" if path else str(field.alias)
            yield from secrets_of(getattr(part, name), place)
    elif isinstance(part, tuple):
        for number, each in enumerate(part):
            yield from secrets_of(each, f"{path}[{number}]")


def with_files(document: Any, folder_of: Callable[[str], str]) -> Any:
    """Return a document with the files of Secrets in place of their references. `folder_of`: where
    the keys of a Secret are files."""
    if isinstance(document, list):
        return [with_files(each, folder_of) for each in document]
    if not isinstance(document, dict):
        return document
    found = {name: with_files(each, folder_of) for name, each in document.items()}
    if (reference := found.pop(REFERENCE, None)) is not None:
        folder, key = folder_of(reference["name"]), reference.get("key")
        found |= {"folder": folder} if key is None else {"file": f"{folder}/{key}"}
    return found
