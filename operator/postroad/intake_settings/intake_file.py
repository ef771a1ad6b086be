"""All that a file of intake holds, and what holds between its parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from postroad.delivery_settings.patterns import DomainName
from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN
from postroad.intake_settings.filters import MAX_FILTERS, FilterSection
from postroad.intake_settings.listeners import IntakeSection, Listener, ListenerRole
from postroad.intake_settings.senders import SenderRule, Users
from postroad.settings.documents import checked, read_yaml


class RecipientTable(IntakeSection):
    """The recipients that a domain has."""

    file: Path
    """File with an address, or its local part, in each line; # begins a comment. Read again when
    it changes."""


class OwnDomain(IntakeSection):
    """A domain whose mail the listeners of role mx take."""

    name: DomainName
    """The domain; not those below it."""

    recipients: RecipientTable | None = None
    """Absent: every recipient, as for a backup of a server that refuses later."""


class IntakeFile(IntakeSection):
    """The content of a file of intake."""

    hostname: Annotated[str, Field(max_length=253, pattern=HOSTNAME_PATTERN)] | None = None
    """Name of the intake in greetings and in Received. Absent: POSTROAD_HOSTNAME."""

    listeners: Annotated[tuple[Listener, ...], Field(min_length=1, max_length=100)]
    users: Users | None = None
    rules: Annotated[tuple[SenderRule, ...], Field(max_length=1000)] = ()
    domains: Annotated[tuple[OwnDomain, ...], Field(max_length=10_000)] = ()
    filters: Annotated[tuple[FilterSection, ...], Field(max_length=MAX_FILTERS)] = ()
    """Programs that look at a mail before it is accepted, in order."""

    @model_validator(mode="after")
    def _holds_together(self) -> IntakeFile:
        for what, names in (
            ("listeners", [each.name for each in self.listeners]),
            ("domains", [each.name for each in self.domains]),
            ("filters", [each.name for each in self.filters]),
        ):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f"{what}: {', '.join(twice)} stands twice")
        known = {each.name for each in self.listeners}
        for filter_ in self.filters:
            if unknown := set(filter_.listeners or ()) - known:
                raise ValueError(f"filters: {filter_.name}: no listener {min(unknown)}")
        roles = {each.role for each in self.listeners}
        login = [each.value for each in roles if each.logs_in]
        if login and self.users is None:
            raise ValueError(f"users is missing: clients of the role {min(login)} log in")
        if ListenerRole.MX in roles and not self.domains:
            raise ValueError("domains is missing: the role mx takes mail for these alone")
        return self

    def files(self) -> set[Path]:
        """Return the files that are read again when they change."""
        found = {self.users.file} if self.users and self.users.file else set[Path]()
        found |= {each.secret for each in self.filters if each.secret}
        return found | {each.recipients.file for each in self.domains if each.recipients}


def read_intake(file: Path) -> IntakeFile:
    """Read and check a file of intake; relative paths in it begin in its folder. Raises:
    InvalidSettings, which names each field that is wrong and what to write instead."""
    return checked(IntakeFile, read_yaml(file.read_text, file), file)
