"""Checks the Secrets that `spec.delivery` of a MailQueue names, before its pods mount them."""

from __future__ import annotations

from postroad.controller.credentials.credentials import read_values
from postroad.controller.reads.read_cache import Reads
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.delivery_settings.secret_references import (
    SecretKeyReference,
    SecretReference,
    secrets_of,
)
from postroad.errors import CredentialsMissing, InvalidInput
from postroad.logins import LOGIN


async def check_delivery_secrets(api: Reads, namespace: str, settings: DeliverySettings) -> None:
    """Check that logins are there, and that keys can sign.

    Raises: CredentialsMissing, which names each field whose Secret lacks what it is for.
    """
    problems = []
    for path, reference in secrets_of(settings):
        try:
            await _check(api, namespace, reference)
        except CredentialsMissing as error:
            problems.append(f"spec.delivery.{path}: {error.explain()}")
    if problems:
        raise CredentialsMissing("; ".join(problems), hint="until then pods stay as they are")


async def _check(api: Reads, namespace: str, reference: SecretReference) -> None:
    if not isinstance(reference, SecretKeyReference):
        await read_values(api, namespace, reference.name, LOGIN)
        return
    # Here, because the library of keys takes 10 MB, which an operator without keys does not need.
    from postroad.signing.keys import SigningKey

    found = await read_values(api, namespace, reference.name, (reference.key,))
    try:
        SigningKey.read(found[reference.key].encode(), quickly=True)
    except InvalidInput as error:
        raise CredentialsMissing(
            f"`{reference.key}` of Secret {namespace}/{reference.name} cannot sign: {error}",
            hint="put in an RSA or Ed25519 key in PEM form, without a password",
        ) from None
