"""Files of settings in the pods of a MailQueue, each with the Secrets that it names, which are
checked before pods mount them: the files of delivery and of intake.

Pods read them again when they change, so that none is replaced. Secrets are mounted whole, a folder
each, so that a rotation within one replaces no pod either. Of objects with authorities, `ca.crt`
alone is mounted."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from postroad.controller.credentials import check_certificate, read_authorities, read_values
from postroad.controller.kubernetes.drift import hash_of
from postroad.controller.reads import Reads
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.mailqueue import Workers
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.spec.tls import FOLDER, READ_BY_ALL
from postroad.delivery_settings.delivery import DeliveryFileSettings, DeliverySettings
from postroad.delivery_settings.files import written
from postroad.delivery_settings.routing import RoutingSettings, StsSettings
from postroad.delivery_settings.secret_references import (
    AUTHORITIES_KEY,
    AuthoritiesReference,
    ObjectReference,
    SecretKeyReference,
    SecretReference,
    references_of,
    secrets_of,
)
from postroad.domain.delivery.webhooks import read_secrets
from postroad.errors import CertificateUnusable, CredentialsMissing, InvalidInput, InvalidSettings
from postroad.intake_settings.intake_file import IntakeSettings
from postroad.intake_settings.outbox import OutboxSection
from postroad.intake_settings.recipients import local_parts
from postroad.intake_settings.user_file import users_in
from postroad.logins import LOGIN


def authorities_in(settings: object) -> list[AuthoritiesReference]:
    """Return the objects with authorities that settings name, each once."""
    found = (each for _, each in references_of(settings))
    named = {each for each in found if isinstance(each, AuthoritiesReference)}
    return sorted(named, key=lambda each: (each.kind, each.name))


@dataclass(frozen=True, slots=True)
class SettingsFiles(ABC):
    """The ConfigMap with a file of settings, the objects that it names, and how pods have them."""

    what: ClassVar[str]
    config_map: str

    @property
    @abstractmethod
    def secrets(self) -> list[str]: ...

    @property
    @abstractmethod
    def authorities(self) -> list[AuthoritiesReference]: ...

    @property
    def folder(self) -> str:
        return f"{FOLDER}/{self.what}"

    def folder_of(self, reference: Mapping[str, str]) -> str:
        """Return where a pod has the files of a Secret, or of authorities, which have a kind."""
        kind, name = reference.get("kind"), reference["name"]
        return (
            f"{self.folder}-{'secrets' if kind is None else f'authorities/{kind.lower()}'}/{name}"
        )

    def volumes(self) -> list[dict[str, Any]]:
        """Return the volumes of the ConfigMap, the Secrets and the authorities."""
        secrets = [
            {
                "name": self._volume_name(each),
                "secret": {"secretName": each, "defaultMode": READ_BY_ALL},
            }
            for each in self.secrets
        ]
        own = {"name": self.what, "configMap": {"name": self.config_map}}
        return [own, *secrets, *(self._volume_with(each) for each in self.authorities)]

    def mounts(self) -> list[dict[str, Any]]:
        """Return where a container has them."""
        folders = {self.what: self.folder}
        folders |= {
            self._volume_name(each): self.folder_of({"name": each}) for each in self.secrets
        }
        others = (self.folder_of(each.model_dump()) for each in self.authorities)
        folders |= {self._volume_name(each): each for each in others}
        return [
            {"name": name, "mountPath": folder, "readOnly": True}
            for name, folder in folders.items()
        ]

    def _volume_with(self, authorities: AuthoritiesReference) -> dict[str, Any]:
        named = {"secretName" if authorities.kind == "Secret" else "name": authorities.name}
        kind = "secret" if authorities.kind == "Secret" else "configMap"
        items = [{"key": AUTHORITIES_KEY, "path": AUTHORITIES_KEY}]
        source = {**named, "defaultMode": READ_BY_ALL, "items": items}
        return {"name": self._volume_name(self.folder_of(authorities.model_dump())), kind: source}

    def _volume_name(self, place: str) -> str:
        """The hash, because the name of a Secret may be longer than that of a volume."""
        return f"{self.what}-{hash_of(place)[:16]}"


_POLICIES = "mta-sts"
_POLICY_FOLDER = f"/var/lib/postroad/{_POLICIES}"


@dataclass(frozen=True, slots=True)
class DeliveryFiles(SettingsFiles):
    """The file of delivery, as `--delivery` reads it. `is_alone`: a pod has it without the Secrets
    and authorities that it names."""

    what = "delivery"
    settings: DeliveryFileSettings
    is_alone: bool = False

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
        return sorted({each.name for _, each in secrets_of(self.settings)})

    @property
    def authorities(self) -> list[AuthoritiesReference]:
        return [] if self.is_alone else authorities_in(self.settings)

    def data(self) -> dict[str, str]:
        return {"delivery.yaml": written(self.settings, self.folder_of)}

    def volumes(self) -> list[dict[str, Any]]:
        volumes = SettingsFiles.volumes(self)
        return [*volumes, {"name": _POLICIES, "emptyDir": {}}] if self._keeps_policies else volumes

    def mounts(self) -> list[dict[str, Any]]:
        mounts = SettingsFiles.mounts(self)
        policies = {"name": _POLICIES, "mountPath": _POLICY_FOLDER}
        return [*mounts, policies] if self._keeps_policies else mounts

    def environment(self) -> Mapping[str, str]:
        """Return the setting that names the file, without its prefix."""
        return {"WORKER_DELIVERY_FILE": f"{self.folder}/delivery.yaml"}

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
    for path, reference in secrets_of(settings):
        try:
            await _check_secret(api, namespace, reference, signs=path.startswith("signing"))
        except CredentialsMissing as error:
            place = _PLACES.get(path.partition(".")[0], "delivery")
            problems.append(f"spec.{place}.{path}: {error.explain()}")
    if problems:
        raise CredentialsMissing("; ".join(problems), hint="until then pods stay as they are")


async def _check_secret(
    api: Reads, namespace: str, reference: SecretReference, *, signs: bool
) -> None:
    if not isinstance(reference, SecretKeyReference):
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


def check_signing_secrets(namespace: str, reference: SecretKeyReference, text: str) -> None:
    """Check that requests can be signed with a text. Raises: CredentialsMissing."""
    try:
        read_secrets(text)
    except InvalidInput as error:
        raise CredentialsMissing(
            f"`{reference.key}` of Secret {namespace}/{reference.name} cannot sign: {error}"
        ) from None


FIELDS = set(IntakeSettings.model_fields)
"""Those of `spec.intake` that a file has, too."""


@dataclass(frozen=True, slots=True)
class IntakeFiles(SettingsFiles):
    """The file of intake, as `--intake` reads it."""

    what = "intake"
    settings: Intake

    @classmethod
    def of(cls, queue: Queue) -> IntakeFiles | None:
        intake = queue.spec.intake
        return None if intake is None else cls(f"{queue.name.name}-intake", intake)

    @property
    def secrets(self) -> list[str]:
        return sorted({each.name for _, each in secrets_of(self.settings)})

    @property
    def authorities(self) -> list[AuthoritiesReference]:
        return authorities_in(self.settings)

    def data(self) -> dict[str, str]:
        settings, outbox = self.settings, self.settings.outbox
        if outbox is not None:  # a file has no class of storage
            own = OutboxSection(when=outbox.when, size=outbox.size)
            settings = settings.model_copy(update={"outbox": own})
        return {"intake.yaml": written(settings, self.folder_of, FIELDS)}

    def environment(self) -> Mapping[str, str]:
        """Return the setting that names the file, without its prefix."""
        return {"INTAKE_FILE": f"{self.folder}/intake.yaml"}


async def check_intake(api: Reads, queue: Queue, intake: Intake) -> None:
    """Check that the objects that an intake names have what they are named for. Raises:
    CredentialsMissing, CertificateUnusable, which name each field whose object lacks it."""
    problems, unusable = [], False
    for path, reference in references_of(intake):
        try:
            await _check_object(api, queue.name.namespace, intake, path, reference)
        except (CredentialsMissing, CertificateUnusable) as error:
            problems.append(f"spec.intake.{path}: {error.explain()}")
            unusable |= isinstance(error, CertificateUnusable)
    if problems:
        kind = CertificateUnusable if unusable else CredentialsMissing
        raise kind("; ".join(problems), hint="until then pods stay as they are")


async def _check_object(
    api: Reads, namespace: str, intake: Intake, path: str, reference: ObjectReference
) -> None:
    if isinstance(reference, AuthoritiesReference):
        await read_authorities(api, namespace, reference)
        return
    if not isinstance(reference, SecretKeyReference):
        if path.startswith("listeners"):
            await check_certificate(api, namespace, reference.name)
        else:
            await read_values(api, namespace, reference.name, LOGIN)
        return
    found = await read_values(api, namespace, reference.name, (reference.key,))
    if path.startswith(("filters", "bounces")):
        check_signing_secrets(namespace, reference, found[reference.key])
        return
    number = re.match(r"domains\[([0-9]+)", path)
    domain = None if number is None else intake.domains[int(number[1])].name
    problem = _problem(found[reference.key], domain)
    if problem is not None:
        what, hint = problem
        raise CredentialsMissing(
            f"`{reference.key}` of Secret {namespace}/{reference.name} {what}", hint=hint
        )


@lru_cache(maxsize=16)
def _problem(text: str, domain: str | None) -> tuple[str, str] | None:
    """Return what is wrong with recipients of a domain, or with users, and what to do. It quotes
    nothing of a file of users, which holds verifiers and addresses."""
    try:
        if domain is None:
            users_in(lambda: text, "users")
        else:
            local_parts(text.splitlines(), domain)
    except InvalidSettings:
        return "is no file of users", "write it with `postroad users add`"
    except InvalidInput as error:
        return f"cannot be used: {error}", "write an address in each line"
    return None
