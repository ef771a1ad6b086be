"""Schema of the API's parameters and documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, WithJsonSchema
from pydantic.alias_generators import to_camel

from postroad.administration.suppression import BY_HAND
from postroad.console.audit import AuditEntry
from postroad.console.operations import Phase, Running
from postroad.console.rates import QueueRates
from postroad.console.reading import MailSearch, MailState, WaitingCause, cause_of, state_of
from postroad.domain.delivery.sites import RerouteOf
from postroad.domain.mail.mail import QUARANTINE, OutcomeKind
from postroad.domain.queues.documents import MailView, Sizes
from postroad.domain.queues.selection import Selector
from postroad.domain.smtp.next_hops import TlsMode
from postroad.domain.values.instants import parse_period
from postroad.errors import InvalidInput
from postroad.ports.mail_queue import Operation

MAX_PAGE = 500
"""Mails of one page."""

T = TypeVar("T")

_ID = "01936f5e-8d3c-7e6a-9b1f-0a1b2c3d4e5f"


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError("a duration is a text, such as 4h")
    try:
        return parse_period(value)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("a number is written as one in JSON")
    return value


ShortText = Annotated[str, Field(max_length=1000)]
MailAddress = Annotated[str, Field(max_length=320, examples=["a@example.org"])]
MailAge = Annotated[
    timedelta,
    BeforeValidator(_duration),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^(?=[0-9])([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$",
            "examples": ["4h", "1h30m"],
        }
    ),
]


class ApiDocument(BaseModel):
    """A part of a response; its fields are named as in JSON."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class ApiRequest(ApiDocument):
    """A part of a request: a field that it does not have is refused."""

    model_config = ConfigDict(extra="forbid")


class Page(ApiDocument, Generic[T]):
    """A page of a listing, and the `cursor` of the next one; null: there is none. A page may have
    fewer items than its limit, or none, and a next one."""

    items: list[T]
    next: str | None = Field(examples=[_ID])


class PageQuery(ApiRequest):
    """Parameters of a page."""

    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: UUID | None = Field(default=None, examples=[_ID])
    """`next` of the page before."""


class SelectorFields(ApiRequest):
    """Mails that are selected; the fields are joined by *and*."""

    sender: MailAddress | None = None
    """The reverse-path; empty or `<>`: the null one."""
    recipient: MailAddress | None = None
    domain: ShortText | None = Field(default=None, examples=["example.net"])
    """Domain of a recipient."""
    older_than: MailAge | None = None
    """Age since acceptance."""

    def chosen(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in SelectorFields.model_fields}
        if found["sender"] == "<>":
            found["sender"] = ""
        return {name: value for name, value in found.items() if value is not None}


class MailQuery(SelectorFields, PageQuery):
    """Parameters of a search."""

    state: MailState | None = None
    q: ShortText | None = Field(default=None, min_length=1, examples=["invoice"])
    """Text in an address, in the name, or in the last error."""

    def search(self) -> MailSearch:
        chosen = self.chosen()
        return MailSearch(Selector(**chosen) if chosen else Selector.all(), self.state, self.q)


class SizesDocument(ApiDocument):
    """Number of mails that wait; `delayed`, `held` and `due` are included in `size`."""

    size: int
    delayed: int
    held: int
    due: int
    dead_letters: int | None
    """Null where they could not be counted."""
    at_least: bool
    """The numbers may be too small, because an exact count would read too much."""
    oldest_due: datetime | None
    """Since when the mail could have been delivered that could for longest."""

    @classmethod
    def of(cls, sizes: Sizes) -> Self:
        return cls.model_validate(sizes, from_attributes=True)


class RatesDocument(ApiDocument):
    """Mails a second, as means over the seconds `overSeconds`, of a queue that was looked at
    before."""

    over_seconds: float = Field(examples=[60.0])
    mails_in: float | None
    """Mails that left, and those that there are more of: too few where mail was removed. Null where
    it cannot be computed."""
    mails_out: float | None
    """Delivered and given up by workers. Null where none shows it."""
    sizes: list[int]
    """Those that were read in the last ten minutes, the oldest first."""

    @classmethod
    def of(cls, rates: QueueRates) -> Self:
        return cls(
            over_seconds=rates.over_seconds,
            mails_in=rates.mails_in,
            mails_out=rates.mails_out,
            sizes=list(rates.sizes),
        )


class ConditionDocument(ApiDocument):
    """A condition of a MailQueue, as the operator last wrote it."""

    type: str = Field(examples=["Ready"])
    status: str = Field(examples=["True"])
    reason: str = Field(examples=["AsDeclared"])


class QueueDocument(ApiDocument):
    """A queue. In a list, `problem` is why it cannot be read now; it has no sizes then."""

    namespace: str = Field(examples=["local"])
    name: str = Field(examples=["outgoing"])
    sizes: SizesDocument | None = None
    oldest_age: str | None = Field(default=None, examples=["20m"])
    """The largest class of age in which mail waits, as in `ages`."""
    rates: RatesDocument | None = None
    """Null where it was not looked at before."""
    conditions: list[ConditionDocument] | None = None
    """`Ready`, and those that are not good. Null for a queue that is no MailQueue."""
    report_at: datetime | None = None
    """When the report of its lake was written; null: there is none."""
    problem: str | None = None


class DomainAges(ApiDocument):
    """Mails of one destination domain, by age since acceptance."""

    domain: str = Field(examples=["example.net"])
    total: int
    ages: dict[str, int] = Field(examples=[{"5m": 2, "10m": 0, "older": 1}])
    """For each limit, the mails that are younger than it and older than the one before."""


class MailDocument(ApiDocument):
    """A mail in a listing."""

    id: UUID = Field(examples=[_ID])
    """The enqueue id."""
    mail_id: UUID
    name: str | None
    sender: str | None
    """The reverse-path; null: the null one."""
    recipients: list[str]
    """Those who are left."""
    state: MailState
    accepted_at: datetime
    enqueued_at: datetime
    due_at: datetime | None
    attempt: int
    priority: int
    size_bytes: int
    last_error: str | None
    reason: str | None
    """Of a dead letter."""
    quarantine: str | None
    """Why a filter held it."""

    @classmethod
    def of(cls, view: MailView, **more: Any) -> Self:
        mail = view.mail
        return cls(
            id=view.enqueue_id,
            mail_id=view.mail_id,
            name=mail.name,
            sender=mail.sender or None,
            recipients=list(mail.recipients),
            state=state_of(view),
            accepted_at=view.accepted_at,
            enqueued_at=view.enqueued_at,
            due_at=view.due_at,
            attempt=view.attempt,
            priority=mail.priority,
            size_bytes=view.size_bytes,
            last_error=view.last_error,
            reason=view.reason,
            quarantine=mail.attributes.get(QUARANTINE) if mail.is_quarantined else None,
            **more,
        )


class WaitingReason(ApiDocument):
    """Why a mail is not delivered yet."""

    cause: WaitingCause
    text: str = Field(examples=["It waits for its next attempt: 451 4.3.0 busy"])


class MailDetail(MailDocument):
    """One mail, with its envelope and the attempts that are known."""

    waiting: WaitingReason
    attributes: dict[str, str]
    attempts: list[dict[str, Any]]
    """Lines of the attempt log, the oldest first; none where the console knows no attempt log."""

    @classmethod
    def detail(cls, view: MailView, attempts: list[dict[str, Any]]) -> Self:
        cause, text = cause_of(view)
        return cls.of(
            view,
            waiting=WaitingReason(cause=cause, text=text),
            attributes=dict(view.mail.attributes),
            attempts=attempts,
        )


class OperationSelector(SelectorFields):
    """Mails that an operation is for; the fields are joined by *and*."""

    id: UUID | None = Field(default=None, examples=[_ID])
    """The enqueue id."""
    name: ShortText | None = None
    all: StrictBool = False
    """Every mail, on purpose: without it, some field has to be given."""

    def selector(self) -> Selector:
        """Return the selector. Raises: InvalidInput for an empty one, and for `all` with others."""
        chosen = self.chosen()
        chosen |= {} if self.id is None else {"enqueue_id": self.id}
        chosen |= {} if self.name is None else {"name": self.name}
        if self.all and chosen:
            raise InvalidInput("`all` cannot be combined with other fields of the selector")
        if not self.all and not chosen:
            raise InvalidInput("the selector is empty: name a field, or `all` on purpose")
        return Selector.all() if self.all else Selector(**chosen)


class OperationRequest(ApiRequest):
    """An operation on the mails that are selected."""

    operation: Operation = Field(examples=["hold"])
    selector: OperationSelector = Field(examples=[{"sender": "newsletter@example.org"}])
    dry_run: StrictBool = False
    """Only count the mails."""
    confirm: Annotated[int, BeforeValidator(_number)] | None = Field(default=None, ge=0)
    """The number of mails that `remove`, `expire` and `discard` are for, as a dry run counted."""


class OperationBegun(ApiDocument):
    """An operation, and the number of mails that it is for."""

    id: UUID
    matched: int


class OperationDocument(OperationBegun):
    """An operation, and how far it is."""

    operation: Operation
    dry_run: bool
    phase: Phase
    done: int
    """Mails that it changed so far: others were so already, or have gone."""
    message: str | None
    """Why it failed, or the server that it waits for."""
    began_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, running: Running) -> Self:
        return cls.model_validate(running, from_attributes=True)


class AuditDocument(ApiDocument):
    """A change that a user made. Its mails are named by the fields that selected them alone."""

    at: datetime
    who: str
    change: str = Field(examples=["hold"])
    fields: list[str] = Field(examples=[["sender"]])
    matched: int | None
    """The number of mails; null for a change beside mail."""
    more: dict[str, str] = Field(examples=[{"site": "mx.example.net"}])

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        return cls.model_validate(asdict(entry) | {"more": dict(entry.more)})


class SiteDocument(ApiDocument):
    """A site of one worker, or a domain that is rerouted."""

    worker: str | None
    """Null: no worker shows it."""
    site: str | None
    domain: str | None = None
    state: str | None = Field(default=None, examples=["active"])
    connections: int = 0
    waiting: int = 0
    at_work: int = 0
    until: str | None = None
    """End of a suspension or a backoff."""
    reply: str | None = None
    replied_at: str | None = None
    reason: str | None = None
    rerouted: Mapping[str, Any] | None = None


class SitesDocument(ApiDocument):
    """The sites, in the order of need; `more`: those that workers leave out."""

    items: list[SiteDocument]
    next: None = None
    more: int


class SuspendRequest(ApiRequest):
    """A suspension of a site."""

    duration: MailAge = Field(examples=["2h"])
    reason: str = Field(max_length=200, examples=["they asked for a pause"])


class RerouteRequest(ApiRequest):
    """A reroute of a site, or with `of`, of a domain; or its end."""

    of: RerouteOf = RerouteOf.SITE
    to: str | None = Field(default=None, max_length=400, examples=["smart-host.example.org:25"])
    """A rule of the routes, or a server as HOST:PORT."""
    tls: TlsMode | None = None
    duration: MailAge | None = Field(default=None, examples=["2h"])
    reason: str | None = Field(default=None, max_length=200)
    end: StrictBool = False
    """End it before its time; goes without the other fields."""


class SiteChanged(ApiDocument):
    """The end of a suspension or a reroute, and what is to be known about it."""

    until: datetime | None
    notes: list[str]


class SiteFlushed(OperationBegun):
    """The flush of the mail of a site, which workers try at once."""

    notes: list[str]


class SuppressionDocument(ApiDocument):
    """An address that is not mailed. With hashes, `address` is one."""

    address: str = Field(examples=["b@example.net"])
    reason: str
    by: str
    added_at: str
    count: int = 0
    """Refusals that led to it."""
    pending: bool = False
    """It is mailed yet: more refusals are needed."""
    expires_at: str | None = None


class SuppressionQuery(ApiRequest):
    """Parameters of the list."""

    limit: int = Field(100, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(default=None, max_length=200, pattern="^([0-9a-f]{2})*$")
    """`next` of the page before."""
    tenant: ShortText = ""


class TenantQuery(ApiRequest):
    """The tenant whose list it is; without it, that of mail without a tenant."""

    tenant: ShortText = ""


class SuppressRequest(ApiRequest):
    """Why an address is not mailed, and for how long; without `lifetime`, for good."""

    reason: str = Field(BY_HAND, max_length=200)
    lifetime: MailAge | None = Field(default=None, examples=["720h"])


class TraceQuery(ApiRequest):
    """Parameters of a trace, joined by *and*; one at least."""

    limit: int = Field(200, ge=1, le=1000)
    recipient: MailAddress | None = None
    sender: MailAddress | None = None
    domain: ShortText | None = None
    site: ShortText | None = None
    outcome: OutcomeKind | None = None
    id: UUID | None = None
    """A mail id, or an enqueue id."""
    within: MailAge | None = None
    """The last so long."""
