"""Answers requests: who asks, what it may, and what becomes of its mail.

The checks are those of SMTP: of the envelope here, of the content by the reception of a mail."""

import asyncio
import base64
import binascii
import hashlib
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from pydantic import ValidationError

from postroad.domain.mail.dot_stuffing import LineEnds
from postroad.domain.mail.mail import TENANT, TRACEPARENT, WELL_FORMED_TRACEPARENT, Origin
from postroad.errors import InvalidMail, KeyReused
from postroad.intake import reply_texts
from postroad.intake.clients import Clients, Rights, Submission
from postroad.intake.context import ClientTimeouts, IntakeContext
from postroad.intake.dialogue import WRONG_SENDER
from postroad.intake.logins.results import (
    WRONG,
    LoggedInUser,
    LoginClient,
    LoginFailed,
    UsersUnavailable,
)
from postroad.intake.reception import OfferedMail, Reception
from postroad.intake.submission import with_login
from postroad.intake.web import composing
from postroad.intake.web.bodies import JsonBodies, chunks_of, parsed
from postroad.intake.web.models import (
    Accepted,
    BatchRequest,
    InjectRecipient,
    InjectRequest,
    InjectResponse,
    MailFields,
    MailRequest,
)
from postroad.intake.web.problems import problem_of
from postroad.problems import Problem, malformed

PIECE_BYTES = 64 * 1024
"""Octets that are handed on at a time of a content in memory."""

AT_ONCE = 32
"""Mails of one request that are queued at a time: they share the syncs of a disk."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_KEY = re.compile(r"[!-~][ -~]{0,253}[!-~]|[!-~]")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NUMBER = re.compile(r"-?[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class HttpClient:
    """A client of one request."""

    context: IntakeContext
    address: str
    is_secured: bool
    rights: Rights = Rights(may_relay=False)  # noqa: RUF009 - it is frozen
    key: str | None = None
    """The Idempotency-Key of the request."""

    traceparent: str | None = None
    """The span of the client that its mails belong to; None: it names none that is valid."""

    logged_in: Callable[[], None] = field(default=lambda: None)
    """Notes that the connection has had a user."""

    @property
    def submission(self) -> Submission:
        assert self.rights.submission is not None
        return self.rights.submission

    @property
    def largest_mail(self) -> int:
        return self.rights.largest_mail(self.context.offer.max_size_bytes)

    def names(self, index: int) -> tuple[str | None, str | None]:
        """Return the enqueue key and the name of a mail of the request. With a key, the name is the
        same each time: it is in the answer."""
        if self.key is None:
            return None, None
        named = f"{self.submission.user}\0{self.key}\0{index}".encode()
        digest = hashlib.sha256(named).hexdigest()
        return f"http:{digest}", digest[:16]


class Requests:
    """Answers the requests of logged-in clients. `clients` counts their mails."""

    def __init__(self, clients: Clients) -> None:
        self._clients, self._bodies = clients, JsonBodies()
        self._worker = ThreadPoolExecutor(1, "http-messages")

    def close(self) -> None:
        """End the thread; what waits for it is cancelled."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _apart(self, work: Callable[..., _Result], *given: Any) -> _Result:
        """Parse or compose in a thread that logins and spills do not wait for."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *given)

    async def mail(self, request: web.BaseRequest, client: HttpClient) -> web.Response:
        """Take one mail."""
        client = await _logged_in(request, client)
        if _media_type(request) == "message/rfc822":
            if request.content_length is None and "Transfer-Encoding" not in request.headers:
                raise Problem(411, "say the length of the message, or send it in chunks")
            accepted = await self._take(
                client, _envelope(request), chunks_of(request, client.largest_mail, _time(client))
            )
            return _json(201, accepted.model_dump())
        _check_json(request)
        async with self._bodies.read(request, client.largest_mail, _time(client)) as body:
            mail = await self._apart(parsed, MailRequest, body)
            body.clear()
            accepted = await self._take_parts(client, mail)
        return _json(201, accepted.model_dump())

    async def batch(self, request: web.BaseRequest, client: HttpClient) -> web.Response:
        """Take several mails; the response has the status of each, in order."""
        client = await _logged_in(request, client)
        _check_json(request)
        async with self._bodies.read(request, client.largest_mail, _time(client)) as body:
            mails = (await self._apart(parsed, BatchRequest, body)).mails
            body.clear()
            results = await _each(partial(self._one, client), mails)
        return _json(207, {"results": results})

    async def inject(self, request: web.BaseRequest, client: HttpClient) -> web.Response:
        """Take one mail for each recipient, as KumoMTA does."""
        client = await _logged_in(request, client)
        _check_json(request)
        async with self._bodies.read(request, client.largest_mail, _time(client)) as body:
            wanted = await self._apart(parsed, InjectRequest, body)
            body.clear()
            if len(wanted.recipients) > client.context.offer.max_recipients:
                raise _too_many_recipients(client)
            content = await self._apart(_inject_content, wanted)
            source: tuple[bytes, ...] = ()
            if client.key:  # once: a thousand recipients would else cost as many digests of it
                source = (await self._apart(_content_digest, wanted),)
            inject = partial(self._inject_one, client, wanted, content, source)
            problems = await _each(inject, wanted.recipients)
        failed = [
            (recipient.email, each)
            for recipient, each in zip(wanted.recipients, problems, strict=True)
            if each is not None
        ]
        result = InjectResponse(
            success_count=len(problems) - len(failed),
            fail_count=len(failed),
            failed_recipients=tuple(email for email, _ in failed),
            errors=tuple(f"{email}: {problem}" for email, problem in failed),
        )
        return _json(200, result.model_dump(mode="json"))

    async def _one(self, client: HttpClient, document: object, index: int) -> dict[str, Any]:
        try:
            mail = await self._apart(_validated, document)
            accepted = await self._take_parts(client, mail, index)
        except Problem as problem:
            return problem.document()
        return {"status": 201, **accepted.model_dump()}

    async def _inject_one(
        self,
        client: HttpClient,
        wanted: InjectRequest,
        content: bytes,
        source: tuple[bytes, ...],
        recipient: InjectRecipient,
        index: int,
    ) -> str | None:
        """Return why one mail was refused; None: it was not."""
        is_whole = isinstance(wanted.content, str)
        envelope = MailFields.model_construct(from_=wanted.envelope_sender, to=(recipient.email,))
        try:
            to = b"" if is_whole else await self._apart(composing.to_field, recipient)
            await self._take(
                client,
                envelope,
                _pieces(to, content),
                index,
                source=source,
                is_incomplete=not is_whole,
            )
        except Problem as problem:
            return problem.detail
        except InvalidMail as error:
            return str(error)
        return None

    async def _take_parts(self, client: HttpClient, mail: MailRequest, index: int = 0) -> Accepted:
        try:
            content = await self._apart(composing.content_of, mail)
        except InvalidMail as error:
            raise Problem(422, str(error)) from None
        return await self._take(
            client,
            mail,
            _pieces(content),
            index,
            source=composing.source_of(mail) if client.key else (),
            is_incomplete=mail.raw is None,
        )

    async def _take(
        self,
        client: HttpClient,
        envelope: MailFields,
        chunks: AsyncIterable[bytes],
        index: int = 0,
        *,
        source: Iterable[bytes] = (),
        is_incomplete: bool = False,
    ) -> Accepted:
        """Take a mail. `source`: what two requests with one key have in common; none: its content.
        Raises: Problem."""
        key, name = client.names(index)
        offered = OfferedMail(
            envelope.from_,
            envelope.recipients,
            attributes=_attributes(client, envelope),
            priority=envelope.priority,
            delay=envelope.delay,
            key=key,
            name=name,
            is_incomplete=is_incomplete,
        )
        self._admit(client, offered)
        protocol = "HTTPS" if client.is_secured else "HTTP"
        origin = Origin(None, client.address or None, protocol)
        reception = Reception(client.context, offered, origin, client.rights)
        digest = hashlib.sha256()
        if key is not None:
            digest.update(json.dumps([offered.sender, offered.recipients]).encode() + b"\n")
        if client.rights.normalises_line_ends:
            chunks = _normalised(chunks)
        for each in source:
            digest.update(each)
        try:
            async for chunk in chunks:
                if key is not None and not source:
                    digest.update(chunk)
                await _add(reception, chunk)
            reception.buffer.append(b"", is_end=True)
            reception.digest = None if key is None else digest.hexdigest()
            reply = await reception.enqueue()
        finally:
            reception.buffer.discard()
        if isinstance(reception.error, KeyReused):
            raise Problem(409, "the Idempotency-Key stands for another mail of the last 24 hours")
        if not reply.is_positive:
            raise problem_of(reply)
        return Accepted(id=str(reception.enqueue_id), mailId=reception.name)

    def _admit(self, client: HttpClient, offered: OfferedMail) -> None:
        """Check what SMTP checks at MAIL and RCPT. Raises: Problem."""
        context, its = client.context, client.submission
        if its.senders is not None and its.senders.match(offered.sender) is None:
            raise problem_of(WRONG_SENDER)
        if len(offered.recipients) > context.offer.max_recipients:
            raise _too_many_recipients(client)
        now = asyncio.get_running_loop().time()
        refusal = its.begins_mail() or self._clients.begins_mail(client.address, now)
        if refusal is not None:
            context.client_refused(refusal, client.address, set())
            raise problem_of(refusal)
        if not context.queue.has_room(1):
            raise problem_of(reply_texts.FULL)


async def _each(
    take: Callable[[_Item, int], Awaitable[_Result]], items: Sequence[_Item]
) -> list[_Result]:
    """Return the results of items, in order; a bounded number of them is under way at a time."""
    results: list[_Result] = []
    for first in range(0, len(items), AT_ONCE):
        group = enumerate(items[first : first + AT_ONCE], first)
        results += await asyncio.gather(*(take(each, number) for number, each in group))
    return results


async def _add(reception: Reception, chunk: bytes) -> None:
    reception.buffer.append(chunk, is_end=False)
    if reception.buffer.must_spill:
        await reception.buffer.spill()


async def _pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """Yield a content in pieces, so that a large one goes to its file without a copy in memory for
    each recipient."""
    for part in parts:
        for at in range(0, len(part), PIECE_BYTES):
            yield part[at : at + PIECE_BYTES]


def _content_digest(wanted: InjectRequest) -> bytes:
    return hashlib.sha256(wanted.model_dump_json(include={"content"}).encode()).digest()


async def _normalised(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a content with CRLF at the end of each line, and without NUL."""
    lines = LineEnds()
    async for chunk in chunks:
        yield lines.feed(chunk).replace(b"\0", b"")
    yield lines.end()


def _inject_content(wanted: InjectRequest) -> bytes:
    if isinstance(wanted.content, str):
        return composing.with_crlf(wanted.content)
    try:
        message = composing.message_of(wanted.content)
        return composing.composed(message, wanted.envelope_sender, None)
    except (InvalidMail, ValueError, IndexError) as error:
        raise Problem(422, str(error) or "content: an address is malformed") from None


def _validated(document: object) -> MailRequest:
    try:
        return MailRequest.model_validate(document)
    except ValidationError as error:
        raise malformed(error) from None


def _attributes(client: HttpClient, envelope: MailFields) -> dict[str, str]:
    """Return the attributes of a mail. Raises: Problem, where it names another tenant than the
    user's, or the user has none: the tenant decides who signs, and whose limits hold."""
    attributes, wanted = dict(envelope.attributes), envelope.tenant
    if client.traceparent is not None:
        attributes[TRACEPARENT] = client.traceparent
    if wanted is None:
        return attributes
    if wanted != client.submission.tenant:
        raise Problem(403, "the user may not send for this tenant")
    return {**attributes, TENANT: wanted}


def _too_many_recipients(client: HttpClient) -> Problem:
    most = client.context.offer.max_recipients
    return Problem(422, f"to: a mail has at most {most} recipients: send several")


async def _logged_in(request: web.BaseRequest, client: HttpClient) -> HttpClient:
    """Return the client with the rights of its user. Raises: Problem."""
    context = client.context
    assert context.authenticator is not None
    assert context.permissions is not None
    login = LoginClient(client.address)
    try:
        permit = partial(context.permissions.of, client=login)
        submission = await _submission(request, context, login, permit)
    except UsersUnavailable:
        raise Problem(503, "logins cannot be checked now, come again") from None
    except LoginFailed:
        context.client_refused(WRONG, client.address, set())
        offered = context.authenticator.mechanisms
        challenges = [
            ("WWW-Authenticate", text)
            for mechanism, text in (
                ("PLAIN", 'Basic realm="postroad", charset="UTF-8"'),
                ("OAUTHBEARER", 'Bearer realm="postroad"'),
            )
            if mechanism in offered
        ]
        raise Problem(401, "log in as a user of this server", headers=challenges) from None
    client.logged_in()
    rights = with_login(context.rules.rights_of(client.address), submission)
    traceparent = _traceparent(request)
    return replace(client, rights=rights, key=_key(request), traceparent=traceparent)


async def _submission(
    request: web.BaseRequest,
    context: IntakeContext,
    login: LoginClient,
    permit: Callable[[LoggedInUser], Submission],
) -> Submission:
    """Raises: LoginFailed."""
    authenticator = context.authenticator
    assert authenticator is not None
    given = request.headers.getall("Authorization", [])
    scheme, _, credentials = (given[0] if len(given) == 1 else "").partition(" ")
    credentials = credentials.strip(" ")
    if scheme.lower() == "bearer" and "OAUTHBEARER" in authenticator.mechanisms:
        if not _TOKEN.fullmatch(credentials):
            raise LoginFailed
        return await authenticator.by_token(credentials, login, permit)
    if scheme.lower() != "basic" or "PLAIN" not in authenticator.mechanisms:
        raise LoginFailed
    try:
        name, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):  # so for text that is not UTF-8
        raise LoginFailed from None
    if not colon or "\0" in name + password:
        raise LoginFailed
    return await authenticator.by_password(name, password, login, permit)


def _key(request: web.BaseRequest) -> str | None:
    """Return the Idempotency-Key. Raises: Problem."""
    keys = request.headers.getall("Idempotency-Key", [])
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise Problem(400, "an Idempotency-Key has 1 to 255 printable characters of ASCII")
    return keys[0]


def _traceparent(request: web.BaseRequest) -> str | None:
    given = request.headers.getall("traceparent", [])
    return given[0] if len(given) == 1 and WELL_FORMED_TRACEPARENT.fullmatch(given[0]) else None


def _media_type(request: web.BaseRequest) -> str:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Problem(415, "send the body without Content-Encoding")
    return request.content_type if "Content-Type" in request.headers else ""


def _check_json(request: web.BaseRequest) -> None:
    charset = (request.charset or "utf-8").lower()
    if _media_type(request) != "application/json" or charset not in ("utf-8", "us-ascii"):
        raise Problem(415, "send application/json in UTF-8; one mail also as message/rfc822")


def _envelope(request: web.BaseRequest) -> MailFields:
    """Return the envelope that a query is. Raises: Problem."""
    query = request.rel_url.query
    document: dict[str, Any] = {}
    for name in query:
        values = query.getall(name)
        if len(values) > 1 and name != "to":
            raise Problem(422, f"{name[:100]}: it stands twice in the query")
        document[name] = tuple(values) if name == "to" else values[0]
    if _NUMBER.fullmatch(document.get("priority", "")):
        document["priority"] = int(document["priority"])
    try:
        return MailFields.model_validate(document)
    except ValidationError as error:
        raise malformed(error) from None


def _time(client: HttpClient) -> ClientTimeouts:
    return client.context.timeouts


def _json(status: int, document: object) -> web.Response:
    return web.json_response(document, status=status)
