"""File that decides about delivery in the pods of workers: a file of delivery, as `--delivery`
reads it.

Checks the Secrets that `spec.delivery` and the relay of a MailQueue name, before its pods mount
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from postroad.controller.credentials import read_authorities, read_values
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.pods.settings_files import (
    authorities_in,
    folder_of,
    object_folder,
    settings_mounts,
    settings_volumes,
)
from postroad.controller.reads import Reads
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.queue_resource import Queue
from postroad.delivery_settings import secret_references
from postroad.delivery_settings.delivery import DeliveryFileSettings, DeliverySettings
from postroad.delivery_settings.files import written
from postroad.delivery_settings.routing import RoutingSettings, StsSettings
from postroad.domain.delivery.webhooks import read_secrets
from postroad.errors import CredentialsMissing, InvalidInput
from postroad.logins import LOGIN

FILE = "delivery.yaml"
_NAME = "delivery"
_POLICIES = "mta-sts"
_POLICY_FOLDER = f"/var/lib/postroad/{_POLICIES}"


@dataclass(frozen=True, slots=True)
class DeliveryFiles:
    """The ConfigMap of a queue with the file of delivery, and how workers have it."""

    config_map: str
    settings: DeliveryFileSettings
    is_alone: bool = False
    """True if a pod has the file without the Secrets and authorities that it names."""

    @classmethod
    def of(cls, queue: Queue) -> DeliveryFiles | None:
        """Return those of a queue; None where its workers need none."""
        workers, settings = queue.spec.workers, queue.spec.delivery
        handler = None if workers is None else workers.handler
        if handler is None or not (handler.mx or handler.relay or settings):
            return None
        decided = dict(settings or DeliverySettings())
        intake = queue.spec.intake
        verp = None if intake is None or intake.bounces is None else intake.bounces.verp_secret
        settings = DeliveryFileSettings.model_construct(
            **decided, relay=handler.relay, verp_secret=verp
        )
        if handler.mx is not None:
            settings = settings.model_copy(update={"routing": _with_folder(settings.routing)})
        return cls(f"{queue.name.name}-delivery", settings)

    @classmethod
    def of_component(cls, queue: Queue, component: str) -> DeliveryFiles | None:
        """Return those of a component's pods: an intake reads the streams of events, and with
        bounces the rules of the suppression list."""
        found = cls.of(queue)
        if found is None or component == "worker":
            return found
        is_read = found.settings.events or found.settings.verp_secret
        return replace(found, is_alone=True) if is_read else None

    @property
    def secrets(self) -> list[str]:
        if self.is_alone:
            return []
        return sorted({each.name for _, each in secret_references.secrets_of(self.settings)})

    @property
    def authorities(self) -> list[secret_references.AuthoritiesReference]:
        return [] if self.is_alone else authorities_in(self.settings)

    def data(self) -> dict[str, str]:
        return {FILE: written(self.settings, partial(object_folder, _NAME))}

    def volumes(self) -> list[dict[str, Any]]:
        volumes = settings_volumes(_NAME, self.config_map, self.secrets, self.authorities)
        return [*volumes, {"name": _POLICIES, "emptyDir": {}}] if self._keeps_policies else volumes

    def mounts(self) -> list[dict[str, Any]]:
        mounts = settings_mounts(_NAME, self.secrets, self.authorities)
        policies = {"name": _POLICIES, "mountPath": _POLICY_FOLDER}
        return [*mounts, policies] if self._keeps_policies else mounts

    def environment(self) -> Mapping[str, str]:
        """Return the setting that names the file, without its prefix."""
        return {"WORKER_DELIVERY_FILE": f"{folder_of(_NAME)}/{FILE}"}

    @property
    def _keeps_policies(self) -> bool:
        return not self.is_alone and self.settings.routes() is not None


def _with_folder(routing: RoutingSettings | None) -> RoutingSettings:
    """Return the routing with a folder for policies of MTA-STS, whether one is honoured or not, so
    that pods stay when one is."""
    routing = routing or RoutingSettings()
    if routing.sts.folder is not None:
        return routing
    return routing.model_copy(update={"sts": StsSettings(folder=Path(_POLICY_FOLDER))})


async def read_of_workers(api: Reads, queue: Queue, workers: Workers) -> dict[str, str]:
    """Check the Secrets that delivery needs; return the version of the authorities of next hops,
    with which workers change too. Raises: CredentialsMissing, CertificateUnusable."""
    delivery, webhook = DeliveryFiles.of(queue), workers.handler.webhook
    namespace = queue.name.namespace
    if delivery is not None:
        await _check_delivery(api, namespace, delivery.settings)
    named = [] if delivery is None else delivery.authorities
    if webhook is not None and webhook.tls is not None and webhook.tls.ca_ref is not None:
        named.append(webhook.tls.ca_ref)
    texts = [await read_authorities(api, namespace, each) for each in named]
    return {"next hops": hash_of(texts)} if texts else {}


_PLACES = {"relay": "workers.handler", "verpSecret": "intake.bounces"}


async def _check_delivery(api: Reads, namespace: str, settings: DeliverySettings) -> None:
    """Check that logins are there, and that keys can sign. Raises: CredentialsMissing, which names
    each field whose Secret lacks what it is for."""
    problems = []
    for path, reference in secret_references.secrets_of(settings):
        try:
            await _check(api, namespace, reference, signs=path.startswith("signing"))
        except CredentialsMissing as error:
            place = _PLACES.get(path.partition(".")[0], "delivery")
            problems.append(f"spec.{place}.{path}: {error.explain()}")
    if problems:
        raise CredentialsMissing("; ".join(problems), hint="until then pods stay as they are")


async def _check(
    api: Reads, namespace: str, reference: secret_references.SecretReference, *, signs: bool
) -> None:
    if not isinstance(reference, secret_references.SecretKeyReference):
        await read_values(api, namespace, reference.name, LOGIN)
        return
    found = await read_values(api, namespace, reference.name, (reference.key,))
    if not signs:
        check_signing_secrets(namespace, reference, found[reference.key])
        return
    # Here, because the library of keys takes 10 MB, which an operator without keys does not need.
    from postroad.signing.keys import SigningKey

    try:
        SigningKey.read(found[reference.key].encode(), quickly=True)
    except InvalidInput as error:
        raise CredentialsMissing(
            f"`{reference.key}` of Secret {namespace}/{reference.name} cannot sign: {error}",
            hint="put in an RSA or Ed25519 key in PEM form, without a password",
        ) from None


def check_signing_secrets(
    namespace: str, reference: secret_references.SecretKeyReference, text: str
) -> None:
    """Check that requests can be signed with a text. Raises: CredentialsMissing."""
    try:
        read_secrets(text)
    except InvalidInput as error:
        raise CredentialsMissing(
            f"`{reference.key}` of Secret {namespace}/{reference.name} cannot sign: {error}"
        ) from None
