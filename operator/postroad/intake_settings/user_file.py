"""Files of users: what the intake knows of each one, and how it is written."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field, model_validator

from postroad.delivery_settings.patterns import TenantName
from postroad.intake_settings.listeners import IntakeSection
from postroad.settings.documents import checked, read_yaml, repeated

_NAME = re.compile(r"[^\x00-\x20\x7f,=]{1,256}")


def _user_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a user's name has no blank, control character, comma or =")
    return text


UserName = Annotated[str, AfterValidator(_user_name)]


class UserRecord(IntakeSection):
    """One user. Its password cannot be found out from it but by guessing."""

    name: UserName
    """As clients write it; compared octet by octet."""

    scram: Annotated[
        str,
        Field(
            repr=False,
            max_length=512,
            pattern=r"^SCRAM-SHA-256\$[1-9][0-9]{3,7}:[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+$",
        ),
    ]
    """Verifier of SCRAM-SHA-256: rounds, salt, StoredKey and ServerKey, as PostgreSQL writes it.
    Source: RFC 5802 3."""

    password: Annotated[str, Field(repr=False, max_length=512, pattern=r"^\$argon2id\$")]
    """Hash by argon2id, for PLAIN, LOGIN and HTTP. Source: RFC 9106."""

    tenant: TenantName | None = None
    """The tenant of the user's mail, unless a rule names another."""


class UserFile(IntakeSection):
    """The content of a file of users."""

    secret: Annotated[str, Field(repr=False, min_length=16, max_length=64)]
    """Makes a salt for each name without a user, so that SCRAM does not show which names exist."""

    users: Annotated[tuple[UserRecord, ...], Field(max_length=1_000_000)] = ()

    @model_validator(mode="after")
    def _has_each_once(self) -> UserFile:
        if twice := repeated(each.name for each in self.users):
            raise ValueError(f"users: {', '.join(twice)} stands twice")
        return self


def new_secret() -> str:
    """Return the secret of a file that begins."""
    return base64.b64encode(secrets.token_bytes(24)).decode()


def read_users(file: Path) -> UserFile:
    """Read a file of users. Raises: InvalidSettings, which quotes no verifier."""
    return users_in(file.read_text, file)


def users_in(text: Callable[[], str], file: object) -> UserFile:
    """Read the text of a file of users, whose name in errors is `file`. Raises: as `read_users`."""
    return checked(UserFile, read_yaml(text, file), file)


def written(users: UserFile) -> str:
    """Return the text of a file of users."""
    document = users.model_dump(mode="json", by_alias=True, exclude_none=True)
    text: str = yaml.safe_dump(document, sort_keys=False, width=1000)
    return text
