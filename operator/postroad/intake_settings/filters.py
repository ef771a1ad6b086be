"""The schema of filters: what looks at a mail before it is accepted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from postroad.delivery_settings.patterns import Duration, WebhookUrl
from postroad.delivery_settings.secret_references import RequestSecret
from postroad.domain.smtp.next_hops import split_host_port
from postroad.errors import InvalidInput
from postroad.intake_settings.listeners import Authorities, IntakeSection

MAX_FILTERS = 20

MAX_TIME = timedelta(minutes=8)
"""Of all filters of one listener: a mail may wait for room besides, and has to be queued, before
the 10 minutes of a client are over (RFC 5321 4.5.3.2.6)."""


def _milter(text: str) -> str:
    kind, _, place = text.partition(":")
    try:
        if kind == "unix" and place.startswith("/"):
            return text
        if kind == "inet" and split_host_port(place)[1]:
            return text
    except InvalidInput:
        pass
    raise ValueError("write inet:HOST:PORT or unix:/PATH")


def _within_a_reply(time: timedelta) -> timedelta:
    if not timedelta(seconds=1) <= time <= timedelta(minutes=5):
        raise ValueError("a filter has 1s to 5m: a client waits 10 minutes for its reply")
    return time


OnError = Literal["Accept", "Defer"]


class HookTls(Authorities):
    """TLS with a hook, whose certificate and name are always checked."""


class FilterSection(IntakeSection):
    """A filter. Exactly one of `milter`, `http` and `function` is given."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Stands in logs and metrics. No two filters have the same."""

    milter: Annotated[str, Field(max_length=300), AfterValidator(_milter)] | None = None
    """Address of a milter: `inet:HOST:PORT`, in a MailQueue of a Service (`inet:rspamd:11332`), or
    `unix:/PATH`, in a MailQueue of a container that intake.template adds, in a volume of both."""

    http: WebhookUrl | None = Field(None, repr=False)
    """URL to which a request with each mail is posted. http is for loopback alone."""

    secret: RequestSecret | None = None
    """Secrets that sign requests of `http`. Sessions that begin later use renewed ones."""

    tls: HookTls | None = None
    """Authorities that vouch for the host of `http`. Absent: the system's."""

    function: Annotated[str, Field(max_length=300, pattern=r"^[\w.]+:[\w.]+$")] | None = None
    """Function in Python, `package.module:function`, imported at the start; in a MailQueue, one
    that its own image has (spec.image)."""

    on_error: OnError = "Defer"
    """Treatment of a mail whose filter fails: it hangs, breaks off, or answers nonsense. Accept:
    the mail goes on as if the filter were not there. Defer: 451, the client keeps the mail."""

    timeout: Annotated[Duration, AfterValidator(_within_a_reply)] = timedelta(seconds=30)
    """For all that it does with one mail: 1s to 5m."""

    listeners: (
        Annotated[
            tuple[Annotated[str, Field(max_length=15)], ...], Field(min_length=1, max_length=100)
        ]
        | None
    ) = None
    """Names of the listeners whose mail it looks at. Absent: all."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> FilterSection:
        given = [self.milter, self.http, self.function]
        if given.count(None) != len(given) - 1:
            raise ValueError("give one of milter, http and function")
        if (self.http is None) != (self.secret is None):
            raise ValueError("secret is of http, which needs it: its requests are signed")
        if self.tls is not None and self.http is None:
            raise ValueError("tls is of http: leave it out")
        return self

    @property
    def port(self) -> int | None:
        """The port of the network that it is asked at; None: none."""
        if self.http is not None:
            parts = urlsplit(self.http)
            return parts.port or (443 if parts.scheme == "https" else 80)
        kind, _, place = (self.milter or "").partition(":")
        return split_host_port(place)[1] if kind == "inet" else None


def check_time(filters: Iterable[FilterSection], listeners: Iterable[str]) -> None:
    """Raises: ValueError, where those of one listener may take longer than `MAX_TIME`."""
    for name in listeners:
        its = (each for each in filters if each.listeners is None or name in each.listeners)
        time = sum((each.timeout for each in its), timedelta())
        if time > MAX_TIME:
            raise ValueError(
                f"filters of a listener may take longer than 8m in all: those of {name} have"
                f" {time.total_seconds():.0f}s; make their timeouts 8m at most: a client waits 10"
                " minutes for its reply"
            )
