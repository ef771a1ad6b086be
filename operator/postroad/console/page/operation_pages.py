"""Pages about operations: counted, confirmed, under way.

An operation on mails that were chosen one by one is one of the API for each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from postroad.console.page.api_calls import Api, form_of
from postroad.console.page.mail_pages import SELECTOR
from postroad.console.page.rendering import query, render
from postroad.console.page.texts import OPERATIONS
from postroad.problems import Problem

router = APIRouter(prefix="/queues/{namespace}/{name}", include_in_schema=False)

MAX_DIGITS = 18
"""Digits of a number of mails."""

LOOKS, LOOK_EVERY = 100, 0.05
"""Times to look whether the operation on one mail has ended, and seconds between."""


@dataclass(frozen=True, slots=True)
class OperationForm:
    """An operation that a form asks for: on the mails of `ids`, or on those of `selector`."""

    operation: str
    ids: tuple[str, ...]
    selector: dict[str, Any]
    confirm: int | None

    @classmethod
    def of(cls, fields: list[tuple[str, str]]) -> OperationForm:
        """Raises: Problem for what no form of the page sends."""
        given = dict(fields)
        ids = tuple(dict.fromkeys(value for name, value in fields if name == "id"))
        selector: dict[str, Any] = {name: given[name] for name in SELECTOR if name in given}
        if "all" in given and not ids and not selector:
            selector = {"all": True}
        confirm = given.get("confirm")
        is_number = confirm is None or (confirm.isdecimal() and len(confirm) <= MAX_DIGITS)
        if given.get("operation") not in OPERATIONS or not is_number:
            raise Problem(422, "the form names no operation")
        if not ids and not selector:
            raise Problem(422, "no mail is chosen: go back, and tick some")
        return cls(given["operation"], ids, selector, None if confirm is None else int(confirm))

    @property
    def is_quick(self) -> bool:
        """True if it needs no confirmation: it can be undone, and is for one mail."""
        return len(self.ids) == 1 and not OPERATIONS[self.operation].is_destructive

    def body(self, selector: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"operation": self.operation, "selector": selector, **more}


@router.post("/operations")
async def operate(request: Request, namespace: str, name: str) -> Response:
    """Count the mails of an operation and ask whether it is meant, or begin it."""
    api, at = Api(request), ("queues", namespace, name)
    wanted = OperationForm.of(await form_of(request))
    if wanted.confirm is None and not wanted.is_quick:
        return await _confirmation(api, at, wanted, None)
    home = "/" + quote("/".join(at))
    if wanted.is_quick:
        return RedirectResponse(home + await _place_after(api, at, wanted), 303)
    if wanted.ids:
        done = await _operate_each(api, at, wanted)
        return RedirectResponse(home + _result(wanted, done), 303)
    try:
        begun = await api.send(
            "POST", *at, "operations", body=wanted.body(wanted.selector, confirm=wanted.confirm)
        )
    except Problem as refused:
        if refused.status != 409:
            raise
        return await _confirmation(api, at, wanted, refused.detail)
    return RedirectResponse(
        f"{home}/operations/{begun['id']}{query(*wanted.selector.items())}", 303
    )


def _result(wanted: OperationForm, done: int) -> str:
    fields = (("operation", wanted.operation), ("done", done), ("of", len(wanted.ids)))
    return f"/operations{query(*fields)}"


async def _place_after(api: Api, at: tuple[str, ...], wanted: OperationForm) -> str:
    """Change one mail; return the path of its page, which is another one where the mail got another
    entry by that, or that of the result."""
    before = await api.get(*at, "mails", wanted.ids[0])
    done = await _operate_each(api, at, wanted)
    asked = [("sender", before["sender"] or "<>"), ("recipient", before["recipients"][0])]
    found = await api.get(*at, "mails", query=[*asked, ("limit", 500)])
    for each in found["items"]:
        if each["mailId"] == before["mailId"] and done:
            return f"/mails/{each['id']}{query(('did', wanted.operation))}"
    return _result(wanted, done)


async def _confirmation(
    api: Api, at: tuple[str, ...], wanted: OperationForm, changed: str | None
) -> Response:
    queue, matched = await api.get(*at), len(wanted.ids)
    if not wanted.ids:
        body = wanted.body(wanted.selector, dryRun=True)
        matched = (await api.send("POST", *at, "operations", body=body))["matched"]
    return render(
        "confirmation",
        queue=queue,
        tab=OPERATIONS[wanted.operation].tab,
        wanted=wanted,
        kind=OPERATIONS[wanted.operation],
        matched=matched,
        changed=changed,
    )


async def _operate_each(api: Api, at: tuple[str, ...], wanted: OperationForm) -> int:
    """Return how many mails were changed; one that has gone meanwhile is none of them."""
    done = 0
    for each in wanted.ids:
        try:
            body = wanted.body({"id": each}, confirm=1)
            begun = await api.send("POST", *at, "operations", body=body)
        except Problem as refused:
            if refused.status != 409:
                raise
            continue
        done += await _ended(api, at, begun["id"])
    return done


async def _ended(api: Api, at: tuple[str, ...], operation_id: str) -> int:
    """Wait until an operation on one mail has ended; return how many it changed. Raises: Problem
    where it failed, or a server is away."""
    for _ in range(LOOKS):
        found = await api.get(*at, "operations", operation_id)
        if found["endedAt"] is not None and found["phase"] != "Failed":
            return int(found["done"])
        if found["message"]:
            raise Problem(503, found["message"])
        await asyncio.sleep(LOOK_EVERY)
    raise Problem(503, "the operation has not ended yet; look again")


@router.get("/operations")
async def show_result(
    request: Request, namespace: str, name: str, operation: str, done: int, of: int
) -> Response:
    """Show what an operation on mails that were chosen one by one has changed."""
    kind = OPERATIONS.get(operation)
    if kind is None:
        raise Problem(404, "there is no such operation")
    queue = await Api(request).get("queues", namespace, name)
    return render("result", queue=queue, tab=kind.tab, kind=kind, done=done, of=of)


@router.get("/operations/{number}")
async def show_operation(request: Request, namespace: str, name: str, number: str) -> Response:
    """Show how far an operation is."""
    api, at = Api(request), ("queues", namespace, name)
    queue, found = await asyncio.gather(api.get(*at), api.get(*at, "operations", number))
    kind = OPERATIONS[found["operation"]]
    fields = [(each, request.query_params.get(each)) for each in (*SELECTOR, "all")]
    return render(
        "operation",
        queue=queue,
        tab=kind.tab,
        kind=kind,
        operation=found,
        selector=[(field, value) for field, value in fields if value],
        here=query(*fields),
    )
