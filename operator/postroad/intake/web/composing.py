"""Composes messages of parts, by the email package. Pure, but for the boundaries of MIME parts.

Source: RFC 5322, RFC 2045 to 2047, RFC 6532."""

import base64
import re
from collections.abc import Iterable
from email import policy
from email.errors import InvalidHeaderDefect
from email.headerregistry import Address, AddressHeader, BaseHeader
from email.message import EmailMessage, Message

from postroad.domain.mail.address_lists import fields_of
from postroad.errors import InvalidMail
from postroad.intake.web.models import (
    Attachment,
    InjectAddress,
    InjectContent,
    MailParts,
    MailRequest,
    has_encoded_word,
)

_LINE_END = re.compile(r"\r\n?|\n")
_BARE_END = re.compile(rb"\r(?!\n)|(?<!\r)\n")

MAX_MALFORMED = 100
"""Characters of a malformed field of addresses that is not ASCII."""

_POLICY = policy.SMTP.clone(cte_type="7bit")
_POLICY_UTF8 = policy.SMTPUTF8.clone(cte_type="7bit")
"""For addresses that are not ASCII, which no other form of a header can hold (RFC 6532)."""


def content_of(mail: MailRequest) -> bytes:
    """Return the content of a mail. Raises: InvalidMail, for fields that no message can have."""
    if mail.raw is not None:
        return mail.raw
    assert mail.message is not None
    only = mail.recipients[0] if len(mail.recipients) == 1 else None
    return composed(mail.message, mail.from_, only or "undisclosed-recipients:;")


def composed(message: MailParts, sender: str | None, to: str | None) -> bytes:
    """Return a message. `sender`: its From, unless a field says another; `to`: its To, unless a
    field names recipients; None: none."""
    addresses = (sender or "", to or "")
    made = EmailMessage(policy=_policy(*addresses))
    try:
        _check_literal(*addresses)
        _add_fields(made, message, sender, to)
        _add_parts(made, message)
        return _checked(made)
    except Exception as error:  # of any kind: the email package fails so at some values
        raise InvalidMail("the message cannot be composed: a field is malformed") from error


def with_crlf(text: str) -> bytes:
    """Return a message that came as text, with CRLF at the end of each line."""
    return _LINE_END.sub("\r\n", text).encode()


def message_of(content: InjectContent) -> MailParts:
    """Return the message that KumoMTA's parts mean."""
    headers = dict(content.headers)
    for name, address in (("From", content.from_), ("Reply-To", content.reply_to)):
        if address is not None:
            headers[name] = named(address)
    attachments = tuple(
        Attachment.model_construct(
            name=each.file_name,
            type=each.content_type,
            content=base64.b64decode(each.data) if each.base64 else each.data.encode(),
        )
        for each in content.attachments
    )
    return MailParts.model_construct(
        subject=content.subject,
        text=content.text_body,
        html=content.html_body,
        headers=headers,
        attachments=attachments,
    )


def named(address: InjectAddress) -> str:
    """Return an address with its name, as fields have it."""
    _check_literal(address.email)
    return str(Address(address.name or "", addr_spec=address.email))


def to_field(address: InjectAddress) -> bytes:
    """Return the field To of one recipient, with its line end. Raises: InvalidMail."""
    made = EmailMessage(policy=_policy(address.email))
    try:
        _check_literal(address.email)
        made["To"] = named(address)
        return _checked(made).removesuffix(b"\r\n")
    except Exception as error:  # as above
        raise InvalidMail("the recipient's name or address is malformed") from error


def source_of(mail: MailRequest) -> Iterable[bytes]:
    """Return the octets by which two requests with one key are the same mail."""
    if mail.raw is not None:
        return (mail.raw,)
    return (mail.model_dump_json(include={"message"}).encode(),)


def _policy(*addresses: str) -> "policy.EmailPolicy[EmailMessage]":
    return _POLICY if all(map(str.isascii, addresses)) else _POLICY_UTF8


def _check_literal(*addresses: str) -> None:
    if any(map(has_encoded_word, addresses)):
        raise InvalidMail("an address in a field has no encoded word (=?...?=)")


def _checked(made: EmailMessage) -> bytes:
    """Return the octets of a message, whose fields are those that were set, each once, with the
    same addresses: the email package writes some values as other fields, or other addresses.
    Raises: InvalidMail."""
    for value in made.values():
        # Before it is written: folding an open comment or group of 998 characters takes seconds.
        is_costly = len(value) > MAX_MALFORMED and not value.isascii()
        defects = value.defects if isinstance(value, BaseHeader) else ()
        if is_costly and isinstance(value, AddressHeader) and any(map(_is_invalid, defects)):
            raise InvalidMail("a field of addresses is malformed")
    content = made.as_bytes()
    _check_header(made, content.partition(b"\r\n\r\n")[0] + b"\r\n")
    for part in made.walk():
        if part is not made:
            folded = [part.policy.fold_binary(*each) for each in part.raw_items()]
            _check_header(part, b"".join(folded))
    return content


def _is_invalid(defect: object) -> bool:
    return isinstance(defect, InvalidHeaderDefect)


def _check_header(made: Message, header: bytes) -> None:
    fields = fields_of(header)
    names = [each.name for each in fields]
    is_other = names != [each.lower() for each in made] or len(set(names)) < len(names)
    if is_other or b"\r\n\r\n" in header or _BARE_END.search(header):
        raise InvalidMail("a field of the message would become another")
    for field in fields:
        wanted = made[field.name]
        if isinstance(wanted, AddressHeader):
            read = _POLICY.header_factory(field.name, field.value)
            if _addresses(read) != _addresses(wanted):
                raise InvalidMail("an address of the message would become another")


def _addresses(field: AddressHeader) -> list[str]:
    return [each.addr_spec for each in field.addresses]


def _add_fields(made: EmailMessage, message: MailParts, sender: str | None, to: str | None) -> None:
    for name, value in message.headers.items():
        made[name] = value
    if message.subject is not None:
        made["Subject"] = message.subject
    if made["From"] is None and sender is not None:
        made["From"] = sender
    if to is not None and made["To"] is None and made["Cc"] is None:
        made["To"] = to


def _add_parts(made: EmailMessage, message: MailParts) -> None:
    if message.text is not None or message.html is None:
        made.set_content(_LINE_END.sub("\n", message.text or ""))
    if message.html is not None:
        html = _LINE_END.sub("\n", message.html)
        if message.text is None:
            made.set_content(html, subtype="html")
        else:
            made.add_alternative(html, subtype="html")
    for each in message.attachments:
        kind, _, subtype = each.type.partition("/")
        made.add_attachment(each.content, kind, subtype, filename=each.name or None)
