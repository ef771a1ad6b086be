"""File that decides about mail that comes in, in the pods of the intake: a file of intake, as
`--intake` reads it; and a check of the Secrets that it names, before pods mount them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from postroad.controller.credentials import check_certificate, read_authorities, read_values
from postroad.controller.pods import settings_files
from postroad.controller.pods.delivery_files import check_signing_secrets
from postroad.controller.reads import Reads
from postroad.controller.spec.intake import Intake
from postroad.controller.spec.queue_resource import Queue
from postroad.delivery_settings.files import written
from postroad.delivery_settings.secret_references import (
    AuthoritiesReference,
    ObjectReference,
    SecretKeyReference,
    references_of,
    secrets_of,
)
from postroad.errors import CertificateUnusable, CredentialsMissing, InvalidInput, InvalidSettings
from postroad.intake_settings.intake_file import IntakeSettings
from postroad.intake_settings.outbox import OutboxSection
from postroad.intake_settings.recipients import local_parts
from postroad.intake_settings.user_file import users_in
from postroad.logins import LOGIN

FILE = "intake.yaml"
FIELDS = set(IntakeSettings.model_fields)
"""Those of `spec.intake` that a file has, too."""

_NAME = "intake"


@dataclass(frozen=True, slots=True)
class IntakeFiles:
    """The ConfigMap of a queue with the file of intake, and how pods have it."""

    config_map: str
    settings: Intake

    @classmethod
    def of(cls, queue: Queue) -> IntakeFiles | None:
        intake = queue.spec.intake
        return None if intake is None else cls(f"{queue.name.name}-intake", intake)

    @property
    def secrets(self) -> list[str]:
        return sorted({each.name for _, each in secrets_of(self.settings)})

    def data(self) -> dict[str, str]:
        folder_of = partial(settings_files.object_folder, _NAME)
        settings, outbox = self.settings, self.settings.outbox
        if outbox is not None:  # a file has no class of storage
            own = OutboxSection(when=outbox.when, size=outbox.size)
            settings = settings.model_copy(update={"outbox": own})
        return {FILE: written(settings, folder_of, FIELDS)}

    def volumes(self) -> list[dict[str, Any]]:
        authorities = settings_files.authorities_in(self.settings)
        return settings_files.settings_volumes(_NAME, self.config_map, self.secrets, authorities)

    def mounts(self) -> list[dict[str, Any]]:
        authorities = settings_files.authorities_in(self.settings)
        return settings_files.settings_mounts(_NAME, self.secrets, authorities)

    def environment(self) -> Mapping[str, str]:
        """Return the setting that names the file, without its prefix."""
        return {"INTAKE_FILE": f"{settings_files.folder_of(_NAME)}/{FILE}"}


async def check_intake(api: Reads, queue: Queue, intake: Intake) -> None:
    """Check that the objects that an intake names have what they are named for. Raises:
    CredentialsMissing, CertificateUnusable, which name each field whose object lacks it."""
    problems, unusable = [], False
    for path, reference in references_of(intake):
        try:
            await _check(api, queue.name.namespace, intake, path, reference)
        except (CredentialsMissing, CertificateUnusable) as error:
            problems.append(f"spec.intake.{path}: {error.explain()}")
            unusable |= isinstance(error, CertificateUnusable)
    if problems:
        kind = CertificateUnusable if unusable else CredentialsMissing
        raise kind("; ".join(problems), hint="until then pods stay as they are")


async def _check(
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
