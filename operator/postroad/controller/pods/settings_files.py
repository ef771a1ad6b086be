"""Files of settings in the pods of a MailQueue: one in a ConfigMap, and the Secrets that it names.

Pods read them again when they change, so that none is replaced. Secrets are mounted whole, a folder
each, so that a rotation within one replaces no pod either."""

from collections.abc import Sequence
from typing import Any

from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.spec.tls import FOLDER, READ_BY_ALL


def folder_of(what: str) -> str:
    return f"{FOLDER}/{what}"


def secret_folder(what: str, secret: str) -> str:
    return f"{FOLDER}/{what}-secrets/{secret}"


def volume_name(what: str, place: str) -> str:
    """The hash, because the name of a Secret may be longer than that of a volume."""
    return f"{what}-{hash_of(place)[:16]}"


def settings_volumes(what: str, config_map: str, secrets: Sequence[str]) -> list[dict[str, Any]]:
    """Return the volumes of the ConfigMap and the Secrets."""
    return [
        {"name": what, "configMap": {"name": config_map}},
        *(
            {
                "name": volume_name(what, each),
                "secret": {"secretName": each, "defaultMode": READ_BY_ALL},
            }
            for each in secrets
        ),
    ]


def settings_mounts(what: str, secrets: Sequence[str]) -> list[dict[str, Any]]:
    """Return where a container has them."""
    folders = {what: folder_of(what)}
    folders |= {volume_name(what, each): secret_folder(what, each) for each in secrets}
    return [read_only(name, folder) for name, folder in folders.items()]


def read_only(name: str, folder: str) -> dict[str, Any]:
    return {"name": name, "mountPath": folder, "readOnly": True}
