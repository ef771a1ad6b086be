"""Schema of the requests and responses."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from postroad.delivery_settings.patterns import TenantName
from postroad.domain.mail.mail import MAX_PRIORITY, MIN_PRIORITY, check_mailbox
from postroad.errors import InvalidMail

MAX_DELAY = timedelta(days=366)
MAX_MAILS = 1000
"""Mails of one batch."""

MAX_FIELDS_TEXT = 64 * 1024
"""Characters of all fields and names of one composed message: folding them takes long."""

_NO_CONTROLS = r"^[^\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]*$"
"""Text without line ends: some programs end lines at U+0085 and U+2028, too."""

_HEADER_NAME = r"^[!-9;-~]{1,76}$"
_OWN_HEADERS = re.compile(r"content-.*|mime-version|received|return-path|bcc|resent-bcc", re.I)
_DURATION = re.compile(r"P(?=.)(\d+W|(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)", re.ASCII)


def _address(text: str) -> str:
    if "@" not in text:
        raise ValueError("an address is local-part@domain")
    try:
        check_mailbox(text)
    except InvalidMail as error:
        raise ValueError(str(error)) from None
    return text


def has_encoded_word(text: str) -> bool:
    """Return True for text in which an encoded word may stand (RFC 2047): the email package decodes
    it where a field is set, and line ends in it would begin fields of their own."""
    return "?=" in text.partition("=?")[2]


def _literal(text: str) -> str:
    if has_encoded_word(text):
        raise ValueError("write text as it is, without encoded words (=?...?=): the server encodes")
    return text


def _check_texts(subject: str | None, headers: dict[str, str], *names: str | None) -> None:
    texts = (subject or "", *headers, *headers.values(), *(each or "" for each in names))
    if sum(map(len, texts)) > MAX_FIELDS_TEXT:
        raise ValueError(f"its fields and names have more than {MAX_FIELDS_TEXT} characters")


def _sender(text: object) -> object:
    return None if text in ("", "<>") else text


def _octets(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("write octets in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("this is not base64 (RFC 4648 4), which has no line ends") from None


def _delay(value: object) -> object:
    if not isinstance(value, str) or len(value) > 32 or not _DURATION.fullmatch(value):
        raise ValueError("write a duration of ISO 8601 in weeks, or days and less: PT15M, P1DT6H")
    return value


def _header_name(name: str) -> str:
    if _OWN_HEADERS.fullmatch(name):
        raise ValueError("this field is made by the server, or names hidden recipients")
    return name


def _attribute(name: str) -> str:
    if name.lower().startswith("postroad."):
        raise ValueError("names that begin with postroad. are the server's")
    return name


Address = Annotated[str, Field(max_length=320), AfterValidator(_address)]
Sender = Annotated[Address | None, BeforeValidator(_sender)]
FieldText = Annotated[str, Field(max_length=998, pattern=_NO_CONTROLS), AfterValidator(_literal)]
Octets = Annotated[
    bytes,
    BeforeValidator(_octets),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]
Delay = Annotated[timedelta, BeforeValidator(_delay), Field(le=MAX_DELAY, examples=["PT15M"])]
HeaderName = Annotated[str, Field(pattern=_HEADER_NAME), AfterValidator(_header_name)]
MediaType = Annotated[
    str, Field(pattern=r"^(application|audio|font|image|model|text|video)/[A-Za-z0-9.+_-]{1,127}$")
]
AttributeName = Annotated[
    str, Field(min_length=1, max_length=100, pattern=_NO_CONTROLS), AfterValidator(_attribute)
]
AttributeValue = Annotated[str, Field(max_length=1000, pattern=_NO_CONTROLS)]


class RequestSection(BaseModel):
    """A part of a request: a field that it does not have is refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_bytes="base64"
    )


class Attachment(RequestSection):
    """A file beside the text."""

    name: Annotated[FieldText, Field(max_length=255)] | None = None
    type: MediaType = "application/octet-stream"
    content: Octets


class MailParts(RequestSection):
    """A message as parts, of which the server composes one."""

    subject: FieldText | None = None
    text: str | None = None
    html: str | None = None
    headers: Annotated[dict[HeaderName, FieldText], Field(max_length=100)] = {}
    """Further fields. Absent, From is the sender; To the recipient, where it is the only one."""

    attachments: Annotated[tuple[Attachment, ...], Field(max_length=100)] = ()

    @model_validator(mode="after")
    def _has_short_fields(self) -> MailParts:
        _check_texts(self.subject, self.headers, *(each.name for each in self.attachments))
        return self


class MailFields(RequestSection):
    """All of a mail but its content; the query of a mail that comes as message/rfc822."""

    from_: Sender = Field(alias="from", examples=["a@example.org"])
    """The reverse-path; empty or `null`: the null one."""

    to: Annotated[tuple[Address, ...], Field(min_length=1, examples=[["b@example.net"]])]
    delay: Delay = timedelta(0)
    """Time until it is due, in ISO 8601."""

    priority: Annotated[StrictInt, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 0
    tenant: TenantName | None = None
    """The tenant of the mail: that of the user, and no other."""

    attributes: Annotated[dict[AttributeName, AttributeValue], Field(max_length=50)] = {}

    @property
    def recipients(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.to))


class MailRequest(MailFields):
    """A mail: `raw`, or `message`."""

    raw: Octets | None = None
    """The message as it is sent, in base64."""

    message: MailParts | None = None

    @model_validator(mode="after")
    def _has_one_content(self) -> MailRequest:
        if (self.raw is None) == (self.message is None):
            raise ValueError("give raw, or message")
        return self


class BatchRequest(RequestSection):
    """Several mails; each is accepted or refused by itself."""

    mails: Annotated[tuple[dict[str, Any], ...], Field(min_length=1, max_length=MAX_MAILS)]


class Accepted(BaseModel):
    """A mail that is queued, and durable."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str = Field(examples=["01936f5e-8d3c-7e6a-9b1f-0a1b2c3d4e5f"])
    """Its enqueue id, by which `postroad show` finds it."""

    mailId: str = Field(examples=["9f86d081884c7d65"])  # noqa: N815 - as in JSON
    """Its name, which stands in Received, in logs, and in `postroad browse`; another entry of the
    mail has it, too."""


class InjectAddress(RequestSection):
    """An address with a name."""

    email: Address
    name: FieldText | None = None


class InjectRecipient(InjectAddress):
    """A recipient."""

    substitutions: Annotated[dict[str, Any], Field(max_length=0)] = {}


class InjectAttachment(RequestSection):
    """A file; `data` in base64 where `base64` is true, else text."""

    data: str
    content_type: MediaType
    file_name: Annotated[FieldText, Field(max_length=255)] | None = None
    base64: StrictBool = False

    @model_validator(mode="after")
    def _is_base64(self) -> InjectAttachment:
        if self.base64:
            _octets(self.data)
        return self


class InjectContent(RequestSection):
    """A message as parts."""

    text_body: str | None = None
    html_body: str | None = None
    from_: InjectAddress | None = Field(None, alias="from")
    reply_to: InjectAddress | None = None
    subject: FieldText | None = None
    headers: Annotated[dict[HeaderName, FieldText], Field(max_length=100)] = {}
    attachments: Annotated[tuple[InjectAttachment, ...], Field(max_length=100)] = ()

    @model_validator(mode="after")
    def _has_short_fields(self) -> InjectContent:
        _check_texts(self.subject, self.headers, *(each.file_name for each in self.attachments))
        return self


_TEMPLATE = re.compile(r"\{[{%#]")


class InjectRequest(RequestSection):
    """A request as KumoMTA takes it: one mail for each recipient. What this server does not do is
    refused: templates, `amp_html_body`, `content_id`, `trace_headers`, and accepting before a mail
    is durable."""

    envelope_sender: Sender
    recipients: Annotated[tuple[InjectRecipient, ...], Field(min_length=1)]
    content: str | InjectContent
    substitutions: Annotated[dict[str, Any], Field(max_length=0)] = {}
    template_dialect: Literal["Static"] | None = None
    deferred_spool: Literal[False] = False
    deferred_generation: Literal[False] = False

    @model_validator(mode="after")
    def _has_no_template(self) -> InjectRequest:
        its = self.content
        texts = (
            [its]
            if isinstance(its, str)
            else [
                its.text_body or "",
                its.html_body or "",
                its.subject or "",
                *its.headers.values(),
            ]
        )
        if self.template_dialect is None and any(map(_TEMPLATE.search, texts)):
            raise ValueError(
                "the content has a template, and templates are not filled in: send what they give,"
                " or template_dialect Static to send it as it is"
            )
        return self


class InjectResponse(BaseModel):
    """Result of a request as KumoMTA takes it."""

    success_count: int
    fail_count: int
    failed_recipients: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
