"""The schema of users who send by logging in: where they are known, and what each of them may."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from postroad.delivery_settings.patterns import (
    WITHOUT_QUERY,
    FilePath,
    PortInRange,
    SenderPattern,
    TenantName,
)
from postroad.delivery_settings.secret_references import SecretKeyReference
from postroad.domain.values.networks import is_secured
from postroad.intake_settings.listeners import IntakeSection, NetworkTexts

MIN_MAIL_BYTES = 65536
"""The least that an intake may take. Source: RFC 5321 4.5.3.1.7, 64 kB."""


_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_OCTETS = "^([1-9][0-9]{0,9})(Ki|Mi|Gi)?$"


def _octets(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = re.match(_OCTETS, value)
    if found is None or "\n" in value:
        raise ValueError("write octets, or as 25Mi: with Ki, Mi or Gi")
    return int(found[1]) * _UNITS[found[2] or ""]


def _user_pattern(text: str) -> str:
    if "*" in text[1:] or re.search(r"[\x00-\x20\x7f]", text):
        raise ValueError("write a user, or * and the end of users' names (*@example.org)")
    return text


_OCTETS_SCHEMA = {"x-kubernetes-int-or-string": True, "maxLength": 12, "pattern": _OCTETS}
MailBytes = Annotated[
    StrictInt,
    BeforeValidator(_octets),
    Field(ge=MIN_MAIL_BYTES),
    WithJsonSchema(_OCTETS_SCHEMA | {"minimum": MIN_MAIL_BYTES}),
]
StoreBytes = Annotated[
    StrictInt,
    BeforeValidator(_octets),
    Field(ge=0),
    WithJsonSchema(_OCTETS_SCHEMA | {"minimum": 0}),
]
UserPattern = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_user_pattern)]


class Oidc(IntakeSection):
    """An issuer of tokens, with which clients log in by OAUTHBEARER or XOAUTH2."""

    issuer: Annotated[
        str, Field(max_length=1024, pattern=f"^https?://{WITHOUT_QUERY}"), PortInRange
    ]
    """Its address, to which `/.well-known/openid-configuration` is appended; also the `iss` that a
    token must have. http is for loopback alone."""

    audience: Annotated[str, Field(min_length=1, max_length=256)]
    """The `aud` that a token must have."""

    claim: Annotated[str, Field(min_length=1, max_length=256)] = "email"
    """The claim that names the user."""

    @model_validator(mode="after")
    def _is_secured(self) -> Oidc:
        if not is_secured(self.issuer):
            raise ValueError("write https://: keys that come in clear verify nothing")
        return self


class DovecotService(IntakeSection):
    """The authentication service of a Dovecot."""

    socket: FilePath
    """Its socket for clients (`service auth { unix_listener auth-client }`); in a MailQueue, of a
    container that intake.template adds, in a volume of both."""


class Users(IntakeSection):
    """Places that know users; the one is asked that can answer the mechanism of a login."""

    secret_ref: SecretKeyReference | None = None
    """Key of a Secret that has a file of users, as `postroad users add` writes it. Another content
    is used once the kubelet has written it into the pod, within about a minute; no pod restarts."""

    file: FilePath | None = None
    """File of users in place of secretRef; in a MailQueue, in a volume that intake.template mounts.
    Read again when it changes."""

    oidc: Oidc | None = None
    """Issuer of tokens. Absent: none."""

    dovecot: DovecotService | None = None
    """Authentication service of a Dovecot, in place of a file of users. Absent: none."""

    @model_validator(mode="after")
    def _has_one_place_for_passwords(self) -> Users:
        places = [self.secret_ref, self.file, self.dovecot]
        given = sum(each is not None for each in places)
        if given > 1:
            raise ValueError(
                "give one of secretRef (in a MailQueue), file and dovecot: a password is checked in"
                " one place"
            )
        if given == 0 and self.oidc is None:
            raise ValueError("give secretRef (in a MailQueue), file, oidc or dovecot")
        return self

    @property
    def fixed(self) -> object:
        """The part that a process takes up at its start alone, as JSON."""
        kept = self.model_dump(mode="json", include={"oidc", "dovecot"})
        return {**kept, "file": self.file is not None or self.secret_ref is not None}


class SenderRule(IntakeSection):
    """Rights of users: of the first rule that names the user, else of the first that names its
    tenant, else of the first that names neither."""

    users: Annotated[tuple[UserPattern, ...], Field(min_length=1, max_length=1000)] | None = None
    """Users it is for: names, or `*` and the end of names."""

    tenant: TenantName | None = None
    """With `users`: the tenant of their mail. Without: the tenant it is for."""

    senders: Annotated[tuple[SenderPattern, ...], Field(min_length=1, max_length=1000)] | None = (
        None
    )
    """Addresses that may stand in MAIL and in the header's From: mailboxes, or `@` and a domain.
    Absent: any."""

    from_: NetworkTexts | None = Field(None, alias="from")
    """Networks from which they may log in. Absent: any."""

    per_minute: Annotated[StrictInt, Field(ge=1, le=1_000_000)] | None = None
    """Mails of each user in a minute, by each process of the intake."""

    per_day: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = None
    """Mails of each user in 24 hours, by each process of the intake."""

    max_size: MailBytes | None = None
    """Octets of their largest mail, such as 25Mi. Absent, or more than the intake's: the
    intake's."""

    fix_up: StrictBool = False
    """Complete their mail: Date and Message-ID are added where they lack, Bcc and Return-Path
    removed. Source: RFC 6409 8."""
