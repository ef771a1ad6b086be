"""Pages about delivery: sites, the suppression list, the trace of a recipient, the
configuration of a view."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from postroad.console.page.api_calls import Api, form_of
from postroad.console.page.rendering import query, render
from postroad.problems import Problem

router = APIRouter(prefix="/queues/{namespace}/{name}", include_in_schema=False)


async def _show(
    request: Request,
    namespace: str,
    name: str,
    tab: str,
    asked: Mapping[str, str] | None,
    **values: Any,
) -> Response:
    """Show the document of a tab, or what is to be done for there to be one; with None, neither."""
    api, at = Api(request), ("queues", namespace, name)

    async def document() -> tuple[Any, Problem | None]:
        try:
            if asked is None:
                return None, None
            return await api.get(*at, tab, query=asked.items()), None
        except Problem as refused:
            if refused.status not in (404, 422):
                raise
            return None, refused

    queue, (found, problem) = await asyncio.gather(api.get(*at), document())
    did = request.query_params.get("did")
    values |= {"problem_text": problem and problem.detail}
    values |= {"is_missing": problem is not None and problem.status == 404}
    return render(tab, queue=queue, tab=tab, found=found, did=did, **values)


@router.get("/sites")
async def show_sites(request: Request, namespace: str, name: str) -> Response:
    """Show the sites that workers deliver to."""
    return await _show(request, namespace, name, "sites", {})


@router.post("/sites")
async def change_site(request: Request, namespace: str, name: str) -> Response:
    """Suspend, resume or flush a site."""
    given, at = dict(await form_of(request)), ("queues", namespace, name)
    change, site = given.get("change", ""), given.get("site", "")
    if change not in ("suspend", "resume", "flush") or not site:
        raise Problem(422, "the form names no site, or no change")
    body = {"duration": given.get("duration", ""), "reason": given.get("reason", "")}
    answer = await Api(request).send(
        "POST", *at, "sites", f"{site}:{change}", body=body if change == "suspend" else None
    )
    home = "/" + quote("/".join(at))
    if change == "flush":
        return RedirectResponse(f"{home}/operations/{answer['id']}", 303)
    return RedirectResponse(f"{home}/sites{query(('did', change))}", 303)


@router.get("/suppressions")
async def show_suppressions(request: Request, namespace: str, name: str) -> Response:
    """Show the addresses that are not mailed."""
    given = {each: request.query_params.get(each, "") for each in ("tenant", "cursor")}
    tenant = given["tenant"]
    return await _show(request, namespace, name, "suppressions", given, tenant=tenant)


@router.post("/suppressions")
async def change_suppressions(request: Request, namespace: str, name: str) -> Response:
    """Put an address on the list, or take it off."""
    given, at = dict(await form_of(request)), ("queues", namespace, name)
    address, tenant = given.get("address"), given.get("tenant", "")
    if address is None:
        raise Problem(422, "the form has no address")
    is_off = given.get("change") == "remove"
    names = ("reason", "lifetime")
    body: dict[str, Any] = {each: given[each] for each in names if each in given}
    await Api(request).send(
        "DELETE" if is_off else "PUT",
        *at,
        "suppressions",
        address,
        query=[("tenant", tenant)],
        body=None if is_off else body,
    )
    done = query(("tenant", tenant), ("did", "remove" if is_off else "add"))
    return RedirectResponse(f"/{quote('/'.join(at))}/suppressions{done}", 303)


@router.get("/trace")
async def show_trace(request: Request, namespace: str, name: str) -> Response:
    """Show the attempts of a recipient's mail."""
    given = {
        each: request.query_params.get(each, "").strip()
        for each in ("recipient", "domain", "site", "outcome", "within")
    }
    asked = given if any(given.values()) else None
    return await _show(request, namespace, name, "trace", asked, given=given)


PLANNED = ("sliceWindow", "bucketCount", "updateBrowseStartPace")


@router.get("/configuration")
async def show_configuration(request: Request, namespace: str, name: str) -> Response:
    """Show the configuration of a queue's view, its history, and what a change would do."""
    given = {each: request.query_params.get(each, "").strip() for each in PLANNED}
    plan, refused = None, None
    if any(given.values()):
        at = ("queues", namespace, name, "configuration", "plan")
        try:
            plan = await Api(request).get(*at, query=given.items())
        except Problem as problem:
            if problem.status not in (404, 422):
                raise
            refused = problem.detail
    shown = {"given": given, "plan": plan, "refused": refused}
    return await _show(request, namespace, name, "configuration", {}, **shown)
