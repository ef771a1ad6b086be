"""All that a file of delivery holds: its sections (routes, limits by rate, the suppression list,
keys that sign mail), and what holds between them."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from postroad.delivery_settings.events import EventStream, with_files_apart
from postroad.delivery_settings.hops import Hop, HostLookUp
from postroad.delivery_settings.patterns import (
    DeliverySection,
    DomainName,
    Duration,
    FilePath,
    ServerPattern,
    TenantName,
)
from postroad.delivery_settings.routing import RoutingSettings, relay_rule
from postroad.delivery_settings.secret_references import SecretKeyReference, VerpSecret, one_place
from postroad.delivery_settings.shaping import (
    ConnectionSettings,
    RetrySettings,
    ServerLimits,
    SuspensionSettings,
)
from postroad.domain.delivery.paces import LimitedBy, LimitRule
from postroad.domain.delivery.retries import RetryPlan, RetryRule
from postroad.domain.delivery.sites import ReplyRule
from postroad.domain.delivery.suppressed import SuppressionRules
from postroad.domain.smtp.bounces import BounceClass, BounceRule
from postroad.domain.values.domain_patterns import DomainPatterns
from postroad.domain.values.text import BY_API_NAME
from postroad.errors import InvalidSettings
from postroad.settings.documents import repeated
from postroad.signing.signatures import Canonical, SelectedKey, SigningRule


class RateLimitSettings(DeliverySection):
    """One limit: how many mails a minute go to what it matches, by all workers of the queue
    together."""

    name: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*$")
    ]
    """Stands in what workers let each other know. No two limits have the same."""

    per_minute: Annotated[StrictInt, Field(ge=1, le=1_000_000)]
    """Mails, each of which may have up to 100 recipients at a site."""

    per: Annotated[LimitedBy, BY_API_NAME] = LimitedBy.RULE
    """Key that has the limit for itself. Rule: all mail that it matches shares it. With Site,
    Tenant or Source, each site, each tenant or each source address has one of its own."""

    burst: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    """Mails that may go at once after a pause."""

    domains: Annotated[tuple[DomainName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Mail to a recipient in one of these domains. Absent: to all."""

    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Mail of these tenants. Absent: of all."""

    servers: Annotated[tuple[ServerPattern, ...], Field(min_length=1, max_length=1000)] | None = (
        None
    )
    """Mail whose first next hop is one of these servers: `mx.example.org`, `*.example.org` for all
    below it, or an address. So a limit is of a provider, whatever the domains of its customers.
    Absent: any."""

    def rule(self) -> LimitRule:
        """Return the value that workers use."""
        return LimitRule(
            self.name,
            self.per,
            self.per_minute,
            self.burst,
            None if self.domains is None else frozenset(self.domains),
            None if self.tenants is None else frozenset(self.tenants),
            None if self.servers is None else DomainPatterns.of(self.servers),
        )


MAX_LIFETIME = timedelta(days=3650)


class LastingBounce(StrEnum):
    """The classes of refusals that say something about an address, and not about a mail."""

    NO_MAILBOX = BounceClass.NO_MAILBOX.value
    NO_DOMAIN = BounceClass.NO_DOMAIN.value
    MAILBOX_UNAVAILABLE = BounceClass.MAILBOX_UNAVAILABLE.value
    SUPPRESSED = BounceClass.SUPPRESSED.value


class KeptAddresses(StrEnum):
    """Form of an address."""

    PLAIN = "plain"
    HASHED = "hashed"


class SuppressionSettings(DeliverySection):
    """The addresses that are not mailed, by tenant: `postroad suppression`."""

    bounces: Annotated[tuple[Annotated[LastingBounce, BY_API_NAME], ...], Field(max_length=4)] = ()
    """Permanent refusals that put a recipient on the list, by their class: NoMailbox, NoDomain,
    MailboxUnavailable, Suppressed. Empty: administrators alone do."""

    after: Annotated[StrictInt, Field(ge=1, le=100)] = 2
    """Such refusals that put a recipient on the list; until then it is mailed. 1: the first one."""

    apart: Annotated[Duration, Field(ge=timedelta(minutes=1), le=MAX_LIFETIME)] = timedelta(
        hours=48
    )
    """Time after a refusal within which the next one counts: a site may refuse all addresses for
    hours."""

    lifetime: Annotated[Duration, Field(ge=timedelta(hours=1), le=MAX_LIFETIME)] = timedelta(
        days=90
    )
    """Time that a recipient is on the list by refusals, and how long a refusal counts."""

    addresses: Annotated[KeptAddresses, BY_API_NAME] = KeptAddresses.PLAIN
    """Form of an address that a refusal put there. Plain: itself. Hashed: its SHA-256, which `list`
    and `export` show; who can guess the address can recognise it."""

    def rules(self) -> SuppressionRules:
        """Return the value that workers use."""
        bounces = frozenset(BounceClass(each) for each in self.bounces)
        is_hashed = self.addresses is KeptAddresses.HASHED
        return SuppressionRules(bounces, is_hashed, self.after, self.apart, self.lifetime)


_LABEL = "[A-Za-z0-9](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9])?"


def _path_of(value: object) -> object:
    if isinstance(value, str) and ("\n" in value or "-----" in value):
        raise ValueError("write the path of a file that has the key, not the key")
    return value


class DomainKey(DeliverySection):
    """A private key, RSA or Ed25519 in PEM without a password, and the selector of its record in
    DNS."""

    selector: Annotated[str, Field(max_length=190, pattern=rf"^{_LABEL}(?:\.{_LABEL})*$")]
    """Under `<selector>._domainkey.<domain>`, DNS has the public half of the key."""

    secret_ref: SecretKeyReference | None = None
    """The key of a Secret that has the private key. Another value is used once the kubelet has
    written it into the pod, within about a minute."""

    file: Annotated[FilePath, BeforeValidator(_path_of)] | None = None
    """File of the private key, in place of secretRef, in a volume that workers.template mounts. A
    relative path begins at the folder of the file of delivery."""

    _one_place = one_place("secret_ref", "file")

    def place(self, folder: Path) -> Path:
        """Return where the key is, of one in a file. `folder`: of the file of delivery."""
        assert self.file is not None
        return folder / self.file


class DomainSigning(DeliverySection):
    """Signatures for one domain."""

    domain: DomainName
    """Mail is signed whose field `From` has an address in this domain; the signatures are its."""

    keys: Annotated[tuple[DomainKey, ...], Field(min_length=1, max_length=4)]
    """Each makes a signature."""

    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Mail of these tenants alone, by the attribute `postroad.tenant`. Absent: all."""

    subdomains: StrictBool = False
    """Also mail of authors in domains below it that have no entry of their own."""

    canonicalization: Annotated[
        str, Field(max_length=15, pattern=r"^(relaxed|simple)/(relaxed|simple)$")
    ] = "relaxed/relaxed"
    """The forms of header and body over which digests are computed: relaxed or simple."""

    @model_validator(mode="after")
    def _has_each_selector_once(self) -> DomainSigning:
        if twice := repeated(each.selector.lower() for each in self.keys):
            raise ValueError(f"the selector {twice[0]} stands twice: a record in DNS has one key")
        return self

    def rule(self, keys: tuple[SelectedKey, ...]) -> SigningRule:
        tenants = None if self.tenants is None else frozenset(self.tenants)
        header, _, body = self.canonicalization.partition("/")
        forms = Canonical(header), Canonical(body)
        return SigningRule(self.domain, keys, tenants, self.subdomains, *forms)


class DeliverySettings(DeliverySection):
    """Decisions about delivery: `spec.delivery` of a MailQueue, or a file of delivery."""

    routing: RoutingSettings | None = None
    """Destinations to which mail goes, in place of a relay; `{}`: to the servers that the MX
    records of each domain name. In a MailQueue it goes with the handler mx. Absent: nothing is
    decided about it."""

    signing: Annotated[tuple[DomainSigning, ...], Field(max_length=1000)] = ()
    """DKIM signatures (RFC 6376), by the domain of the field `From`. Mail of other domains is not
    signed."""

    limits: Annotated[tuple[RateLimitSettings, ...], Field(max_length=100)] = ()
    """Number of mails that go in a minute, by all workers of the queue together. A mail is under
    each limit that matches it."""

    connections: Annotated[tuple[ConnectionSettings, ...], Field(max_length=100)] = ()
    """Limits of connections to servers. The first entry that has a server decides."""

    retries: Annotated[tuple[RetrySettings, ...], Field(max_length=100)] = ()
    """When mail for some recipients is tried again; the first entry that has one decides, and where
    none does, the schedule of the queue."""

    suspensions: Annotated[tuple[SuspensionSettings, ...], Field(max_length=100)] = ()
    """Replies that suspend a site where mail goes by routes, before those of this release; the
    first entry that fits decides."""

    suppression: SuppressionSettings | None = None
    """The suppression list: addresses on it are not mailed; their mail fails, and its sender gets a
    report. Absent: the list is not looked at."""

    bounce_rules: Annotated[tuple[BounceRule, ...], Field(max_length=100)] = ()
    """Rows that decide what refusals are counted as, before those of this release; the first one
    that fits does."""

    events: Annotated[
        tuple[EventStream, ...], Field(max_length=20), AfterValidator(with_files_apart)
    ] = ()
    """Streams of events to programs outside: what became of each recipient, in workers and in the
    intake."""

    def suppression_rules(self) -> SuppressionRules | None:
        """Return what workers do with the suppression list; None: nothing."""
        return None if self.suppression is None else self.suppression.rules()

    def connection_limits(self) -> ServerLimits | None:
        """Return the limits of destinations; None: all have the usual ones."""
        rules = ((DomainPatterns.of(each.servers), each.limits()) for each in self.connections)
        return ServerLimits(tuple(rules)) if self.connections else None

    def retry_rules(self, of_queue: RetryPlan) -> tuple[RetryRule, ...]:
        """Return the schedules of destinations. Raises: InvalidSettings, for one that does not fit
        the queue's."""
        found = []
        for number, each in enumerate(self.retries):
            try:
                found.append(each.rule(of_queue))
            except ValueError as error:
                raise InvalidSettings(f"retries[{number}]: {error}") from error
        return tuple(found)

    def reply_rules(self) -> tuple[ReplyRule, ...]:
        return tuple(each.rule() for each in self.suspensions)

    def limit_rules(self) -> tuple[LimitRule, ...]:
        return tuple(each.rule() for each in self.limits)

    @model_validator(mode="after")
    def _has_each_name_once(self) -> DeliverySettings:
        for what, named in (("limits", self.limits), ("events", self.events)):
            if twice := repeated(each.name for each in named):
                raise ValueError(f"two {what} have the name {twice[0]}: rename one")
        return self

    @model_validator(mode="after")
    def _every_entry_is_reached(self) -> DeliverySettings:
        taken: dict[str, set[str | None]] = {}
        for each in self.signing:
            tenants: set[str | None] = set(each.tenants or (None,))
            before = taken.setdefault(each.domain, set())
            if None in before or tenants <= before:
                raise ValueError(
                    f"an entry for {each.domain} is never reached: one before it has all its mail"
                )
            before |= tenants
        return self


class DeliveryFileSettings(DeliverySettings):
    """A file of delivery, which in the pods of a MailQueue has the relay of its handler too."""

    relay: Hop | None = None
    """All mail goes there, in place of `routing`. Its host is looked up by the system's resolver,
    unless `lookUp: MX` leads to its servers."""

    verp_secret: VerpSecret | None = None
    """Secrets that sign the reverse-paths of next hops with `verp`; in the pods of a MailQueue,
    those of `spec.intake.bounces`. Absent: nothing signs them."""

    @model_validator(mode="after")
    def _names_one_target(self) -> DeliveryFileSettings:
        if self.relay is not None and self.routing is not None:
            raise ValueError(
                "mail goes either to the relay or by the routing: leave one of them out; a rule of"
                " routing can name a relay in hops"
            )
        if self.relay is not None and self.suspensions and self.routes() is None:
            raise ValueError(
                "replies of a relay suspend nothing, since they are about sites behind it: leave"
                " suspensions out"
            )
        return self

    def routes(self) -> RoutingSettings | None:
        """Return how mail is routed; None where it goes to a server, or nothing is decided."""
        if self.relay is None or self.relay.look_up is not HostLookUp.MX:
            return self.routing
        return RoutingSettings(rules=(relay_rule(self.relay),))

    def hops(self) -> list[Hop]:
        rules = () if self.routing is None else self.routing.rules
        found: list[Hop] = [hop for rule in rules for hop in rule.hops or ()]
        return found if self.relay is None else [self.relay, *found]
