"""Files of settings in the pods of a MailQueue: one in a ConfigMap, and the Secrets that it names.

Pods read them again when they change, so that none is replaced. Secrets are mounted whole, a folder
each, so that a rotation within one replaces no pod either. Of objects with authorities, `ca.crt`
alone is mounted."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.spec.tls import FOLDER, READ_BY_ALL
from postroad.delivery_settings.secret_references import (
    AUTHORITIES_KEY,
    AuthoritiesReference,
    references_of,
)


def folder_of(what: str) -> str:
    return f"{FOLDER}/{what}"


def object_folder(what: str, reference: Mapping[str, str]) -> str:
    """Return where a pod has the files of a Secret, or of authorities, which have a kind."""
    kind, name = reference.get("kind"), reference["name"]
    if kind is None:
        return f"{FOLDER}/{what}-secrets/{name}"
    return f"{FOLDER}/{what}-authorities/{kind.lower()}/{name}"


def authorities_in(settings: object) -> list[AuthoritiesReference]:
    """Return the objects with authorities that settings name, each once."""
    found = (each for _, each in references_of(settings))
    named = {each for each in found if isinstance(each, AuthoritiesReference)}
    return sorted(named, key=lambda each: (each.kind, each.name))


def volume_name(what: str, place: str) -> str:
    """The hash, because the name of a Secret may be longer than that of a volume."""
    return f"{what}-{hash_of(place)[:16]}"


def settings_volumes(
    what: str,
    config_map: str,
    secrets: Sequence[str],
    authorities: Sequence[AuthoritiesReference] = (),
) -> list[dict[str, Any]]:
    """Return the volumes of the ConfigMap, the Secrets and the authorities."""
    return [
        {"name": what, "configMap": {"name": config_map}},
        *(
            {
                "name": volume_name(what, each),
                "secret": {"secretName": each, "defaultMode": READ_BY_ALL},
            }
            for each in secrets
        ),
        *(_volume_with(what, each) for each in authorities),
    ]


def _volume_with(what: str, authorities: AuthoritiesReference) -> dict[str, Any]:
    named = {"secretName" if authorities.kind == "Secret" else "name": authorities.name}
    kind = "secret" if authorities.kind == "Secret" else "configMap"
    items = [{"key": AUTHORITIES_KEY, "path": AUTHORITIES_KEY}]
    source = {**named, "defaultMode": READ_BY_ALL, "items": items}
    folder = object_folder(what, authorities.model_dump())
    return {"name": volume_name(what, folder), kind: source}


def settings_mounts(
    what: str, secrets: Sequence[str], authorities: Sequence[AuthoritiesReference] = ()
) -> list[dict[str, Any]]:
    """Return where a container has them."""
    folders = {what: folder_of(what)}
    folders |= {volume_name(what, each): object_folder(what, {"name": each}) for each in secrets}
    others = (object_folder(what, each.model_dump()) for each in authorities)
    folders |= {volume_name(what, each): each for each in others}
    return [read_only(name, folder) for name, folder in folders.items()]


def read_only(name: str, folder: str) -> dict[str, Any]:
    return {"name": name, "mountPath": folder, "readOnly": True}
