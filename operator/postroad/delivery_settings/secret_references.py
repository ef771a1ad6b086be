"""Secrets and authorities that a MailQueue names in what it decides about delivery and about mail
that comes in. Its pods have them as files, and their file of delivery or of intake names these."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from postroad.delivery_settings.patterns import DeliverySection, FilePath, ObjectName
from postroad.errors import InvalidSettings
from postroad.settings.documents import checked

REFERENCE, AUTHORITIES, CERTIFICATE = "secretRef", "caRef", "certRef"
AUTHORITIES_KEY = "ca.crt"
CERTIFICATE_KEYS = ("tls.crt", "tls.key")
"""As cert-manager and `kubectl create secret tls` name them."""

_Model = TypeVar("_Model", bound=BaseModel)

FolderOf = Callable[[Mapping[str, str]], str]
"""The folder in which a pod has an object as files: of a Secret by its `name`, of authorities by
`kind` and `name`."""


def one_place(reference: str, path: str) -> Any:
    """Return the validator of a model with two fields, of which one is given: the reference to an
    object, or a path."""

    def check(part: _Model) -> _Model:
        if (getattr(part, reference) is None) == (getattr(part, path) is None):
            names = [type(part).model_fields[each].alias for each in (reference, path)]
            raise ValueError(f"give either {names[0]} (in a MailQueue) or {names[1]}")
        return part

    return model_validator(mode="after")(check)


class SecretReference(DeliverySection):
    """Names a Secret in the namespace of the resource that names it."""

    name: ObjectName
    """Name of the Secret."""


class SecretKeyReference(SecretReference):
    """Names a key of a Secret in the namespace of the MailQueue."""

    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key of the Secret that has the value."""


def _path_of(value: object) -> object:
    if isinstance(value, str) and value.startswith("whsec_"):
        raise ValueError("write the path of a file that has the secret, not the secret")
    return value


class RequestSecret(DeliverySection):
    """Secrets that sign requests, one a line: `whsec_` and base64, or any text of 24 octets or
    more. Each request has a signature of each."""

    secret_ref: SecretKeyReference | None = None
    """The key of a Secret that has them."""

    file: Annotated[FilePath, BeforeValidator(_path_of)] | None = None
    """File that has them, in place of secretRef. A relative path begins at the folder of the file
    that names it."""

    _one_place = one_place("secret_ref", "file")


class VerpSecret(RequestSecret):
    """Secrets that sign reverse-paths, one a line: any text of 24 octets or more (`openssl rand
    -hex 32`). The first one signs, and up to three more are accepted, so that a new one can be put
    above the old one for the 30 days in which reports come back."""

    file: Annotated[FilePath, BeforeValidator(_path_of)] | None = None
    """File that has them, in place of secretRef; in a MailQueue, in a volume that workers.template
    and intake.template mount. A relative path begins at the folder of the file that names it."""


class AuthoritiesReference(DeliverySection):
    """Names an object that holds certificate authorities."""

    kind: Literal["Secret", "ConfigMap"] = "Secret"
    """Kind of the object."""

    name: ObjectName
    """Name of the object, which has the key `ca.crt`: certificate authorities in PEM form."""


ObjectReference = SecretReference | AuthoritiesReference


def secrets_of(part: object) -> Iterator[tuple[str, SecretReference]]:
    """Yield each Secret that a part of the schema names, with its place (`signing[0].secretRef`);
    one that is named twice, twice. Authorities are none of them."""
    return ((at, each) for at, each in references_of(part) if isinstance(each, SecretReference))


def references_of(part: object, path: str = "") -> Iterator[tuple[str, ObjectReference]]:
    """Yield each object that a part of the schema names, with its place."""
    if isinstance(part, ObjectReference):
        yield path, part
    elif isinstance(part, BaseModel):
        for name, field in type(part).model_fields.items():
            place = f"{path}.{field.alias}" if path else str(field.alias)
            yield from references_of(getattr(part, name), place)
    elif isinstance(part, tuple):
        for number, each in enumerate(part):
            yield from references_of(each, f"{path}[{number}]")


def checked_file(model: type[_Model], document: object, file: object) -> _Model:
    """Check a document that names files, and no Secrets. Raises: InvalidSettings,
    which names each field that is wrong and what to write instead."""
    found = checked(model, document, file)
    if places := [path for path, _ in references_of(found)]:
        raise InvalidSettings(
            f"{file}: {', '.join(places)}: a Secret is named in a MailQueue alone: write the folder"
            " of a login, or the file of a key, of authorities, of users, …"
        )
    return found


def with_files(document: Any, folder_of: FolderOf) -> Any:
    if isinstance(document, list):
        return [with_files(each, folder_of) for each in document]
    if not isinstance(document, dict):
        return document
    found = {name: with_files(each, folder_of) for name, each in document.items()}
    if (reference := found.pop(REFERENCE, None)) is not None:
        folder, key = folder_of(reference), reference.get("key")
        found |= {"folder": folder} if key is None else {"file": f"{folder}/{key}"}
    if (reference := found.pop(AUTHORITIES, None)) is not None:
        found["caFile"] = f"{folder_of({'kind': 'Secret', **reference})}/{AUTHORITIES_KEY}"
    if (reference := found.pop(CERTIFICATE, None)) is not None:
        paths = [f"{folder_of(reference)}/{each}" for each in CERTIFICATE_KEYS]
        found |= dict(zip(("cert", "key"), paths, strict=True))
    return found
