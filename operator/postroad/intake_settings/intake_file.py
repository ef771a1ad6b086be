"""All that a file of intake, or `spec.intake` of a MailQueue, holds, and what holds between its
parts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool, model_validator

from postroad.delivery_settings.hops import Hop, HostLookUp
from postroad.delivery_settings.patterns import DomainName, FilePath
from postroad.delivery_settings.secret_references import SecretKeyReference, checked_file
from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN
from postroad.intake_settings.bounces import Bounces
from postroad.intake_settings.filters import MAX_FILTERS, FilterSection, check_time
from postroad.intake_settings.listeners import FileListener, IntakeSection, Listener, ListenerRole
from postroad.intake_settings.outbox import FileOutbox, OutboxSection
from postroad.intake_settings.senders import SenderRule, Users
from postroad.settings.documents import read_yaml, repeated


class RecipientTable(IntakeSection):
    """The recipients that a domain has."""

    secret_ref: SecretKeyReference | None = None
    """Key of a Secret with an address, or its local part, in each line; # begins a comment. Another
    content is used once the kubelet has written it into the pod; no pod restarts."""

    file: FilePath | None = None
    """File with such lines in place of secretRef; in a MailQueue, in a volume that intake.template
    mounts. Read again when it changes."""

    call_ahead: Hop | None = None
    """Server that has the mailboxes, which is asked by RCPT for each; replies are remembered."""

    @model_validator(mode="after")
    def _has_one_place(self) -> RecipientTable:
        if [self.secret_ref, self.file, self.call_ahead].count(None) != 2:
            raise ValueError("give one of secretRef (in a MailQueue), file and callAhead")
        if self.call_ahead is not None and self.call_ahead.look_up is HostLookUp.MX:
            raise ValueError("callAhead names one server: leave out lookUp")
        return self


class OwnDomain(IntakeSection):
    """A domain whose mail the listeners of role mx take."""

    name: DomainName
    """The domain; not those below it."""

    recipients: RecipientTable | None = None
    """The recipients that it has. Absent: every recipient, as for a backup of a server that refuses
    later."""

    backup: StrictBool = False
    """True if mail is taken for every recipient while the server of callAhead does not answer."""

    @model_validator(mode="after")
    def _asks_a_server(self) -> OwnDomain:
        if self.backup and (self.recipients is None or self.recipients.call_ahead is None):
            raise ValueError(
                "backup goes with recipients.callAhead: without it, mail is taken"
                " whatever the server does"
            )
        return self


def _check_once(what: str, names: Iterable[str]) -> None:
    if twice := repeated(names):
        raise ValueError(f"{what}: {', '.join(twice)} stands twice")


class IntakeSettings(IntakeSection):
    """Decisions about mail that comes in: `spec.intake` of a MailQueue, or a file of intake."""

    hostname: Annotated[str, Field(max_length=253, pattern=HOSTNAME_PATTERN)] | None = None
    """Name of the intake in greetings and in Received. Absent: `hostname` of the MailQueue, or
    POSTROAD_HOSTNAME."""

    listeners: Annotated[tuple[Listener, ...], Field(min_length=1, max_length=100)]
    """Ports on which it takes mail."""

    users: Users | None = None
    """Places that know the users who log in. Absent: none logs in."""

    rules: Annotated[tuple[SenderRule, ...], Field(max_length=1000)] = ()
    """Rights of users. One that no rule is about may send all that the intake takes."""

    domains: Annotated[tuple[OwnDomain, ...], Field(max_length=10_000)] = ()
    """Domains whose mail the listeners of role mx take."""

    filters: Annotated[tuple[FilterSection, ...], Field(max_length=MAX_FILTERS)] = ()
    """Programs that look at a mail before it is accepted, in order."""

    bounces: Bounces | None = None
    """Reports that come back to the reverse-paths of the queue's mail, which the listeners of role
    mx take. Absent: none."""

    outbox: OutboxSection | None = None
    """Store for mail that the queue does not take now. Absent: such mail is refused with 451."""

    @model_validator(mode="after")
    def _keeps_reports(self) -> IntakeSettings:
        if self.outbox is not None and self.bounces is not None:
            raise ValueError(
                "reports need the servers, and an outbox is there for when they are away: give"
                " bounces, or outbox, to an intake of its own"
            )
        return self

    @model_validator(mode="after")
    def _holds_together(self) -> IntakeSettings:
        _check_once("listeners", (each.name for each in self.listeners))
        _check_once("domains", (each.name for each in self.domains))
        roles = {each.role for each in self.listeners}
        if self.users is None and any(each.logs_in for each in roles):
            raise ValueError("users is missing: clients of the roles submission and http log in")
        if ListenerRole.MX in roles and not (self.domains or self.bounces):
            raise ValueError("domains is missing: the role mx takes mail for these alone")
        self._check_filters({each.name for each in self.listeners})
        if self.bounces is not None and ListenerRole.MX not in roles:
            raise ValueError("bounces needs a listener of role mx, which takes them")
        return self

    def _check_filters(self, known: set[str]) -> None:
        _check_once("filters", (each.name for each in self.filters))
        for filter_ in self.filters:
            if unknown := set(filter_.listeners or ()) - known:
                raise ValueError(
                    f"filters: {filter_.name}: a filter names a listener that there is not:"
                    f" {min(unknown)}"
                )
        check_time(self.filters, known)

    @property
    def fixed(self) -> object:
        """The part that a process takes up at its start alone, as JSON."""
        listeners = [
            [each.name, each.address, each.port, each.is_implicit, each.role is ListenerRole.HTTP]
            for each in self.listeners
        ]
        fixed = [listeners, None if self.users is None else self.users.fixed]
        if self.outbox is not None:
            fixed.append(self.outbox.model_dump(mode="json"))
        return fixed


class IntakeFile(IntakeSettings):
    """The content of a file of intake."""

    listeners: Annotated[tuple[FileListener, ...], Field(min_length=1, max_length=100)]
    outbox: FileOutbox | None = None

    def files(self) -> set[Path]:
        """Return the files that are read again when they change."""
        verp = None if self.bounces is None else self.bounces.verp_secret
        secrets = [verp, *(each.secret for each in self.filters)]
        holders = [self.users, *secrets, *(each.recipients for each in self.domains)]
        return {each.file for each in holders if each is not None and each.file}


def read_intake(file: Path) -> IntakeFile:
    """Read and check a file of intake; relative paths in it begin in its folder. Raises:
    InvalidSettings, which names each field that is wrong and what to write instead."""
    return checked_file(IntakeFile, read_yaml(file.read_text, file), file)
