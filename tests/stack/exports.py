"""The variables that lead postroad to the servers: `env` writes them, and the stack reads them to
find servers that it did not start.

A variable that names a server makes the stack use that server (provider `environment`), unless this
command wrote the variable. `env` leaves a fingerprint of what it wrote, so that a shell that has
evaluated it can still run `down` and `up`.
"""

import hashlib
import shlex
from collections.abc import Mapping

FINGERPRINTS = "POSTROAD_STACK_EXPORTS"

LEADING = {
    "rabbitmq": "POSTROAD_RABBITMQ_URI",
    "cassandra": "POSTROAD_CASSANDRA_CONTACT_POINTS",
    "s3": "POSTROAD_S3_ENDPOINT",
    "minio": "POSTROAD_MINIO_ENDPOINT",
    "kubernetes": "KUBECONFIG",
}
"""The variable by whose presence a server of this kind is known to exist."""

PREFIXES = {
    "rabbitmq": "POSTROAD_RABBITMQ_",
    "cassandra": "POSTROAD_CASSANDRA_",
    "s3": "POSTROAD_S3_",
    "minio": "POSTROAD_MINIO_",
    "kubernetes": "KUBECONFIG",
}


def render(servers: Mapping[str, Mapping[str, str]], *, plain: bool = False) -> str:
    """Return shell lines that export each server's variables; later servers win.

    Plain lines are `NAME=value`, for `env(1)`; no value has a space.
    """
    merged: dict[str, str] = {}
    for variables in servers.values():
        merged.update(variables)
    if merged:
        merged[FINGERPRINTS] = ",".join(
            f"{name}:{_fingerprint(name, merged)}" for name in LEADING if LEADING[name] in merged
        )
    if plain:
        return "".join(f"{name}={value}\n" for name, value in merged.items())
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in merged.items())


def given(server: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a server which the stack did not start; empty when there is
    none."""
    if server not in LEADING or not environment.get(LEADING[server]):
        return {}
    ours = environment.get(FINGERPRINTS, "").split(",")
    if f"{server}:{_fingerprint(server, environment)}" in ours:
        return {}
    return _of(server, environment)


def all_given(environment: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the variables of each server that the stack did not start."""
    return {name: found for name in LEADING if (found := given(name, environment))}


def without_given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that name servers which the stack did not start."""
    others = {name for found in all_given(environment).values() for name in found}
    return {name: value for name, value in environment.items() if name not in others}


def _of(server: str, environment: Mapping[str, str]) -> dict[str, str]:
    prefix = PREFIXES[server]
    return {name: value for name, value in environment.items() if name.startswith(prefix)}


def _fingerprint(server: str, environment: Mapping[str, str]) -> str:
    content = repr(sorted(_of(server, environment).items()))
    return hashlib.sha256(content.encode()).hexdigest()[:8]
