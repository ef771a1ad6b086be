"""Routes about sites: listed, suspended, resumed, flushed, rerouted."""

from __future__ import annotations

from fastapi import APIRouter

from postroad.administration import rerouting, sites
from postroad.console.api.access import ChangeQueue, QueueAccess, ReadMails, audited
from postroad.console.api.models import (
    RerouteRequest,
    SiteChanged,
    SiteDocument,
    SiteFlushed,
    SitesDocument,
    SuspendRequest,
)
from postroad.domain.delivery.sites import RerouteOf
from postroad.domain.mail.seven_bits import ascii_domain
from postroad.errors import InvalidInput
from postroad.ports.delivery import SharedState
from postroad.ports.mail_queue import Operation
from postroad.problems import Problem

router = APIRouter(prefix="/queues/{namespace}/{name}", tags=["sites"])


NOT_SHOWN = "no worker shows a site of this name: compare it with GET \u2026/sites"


def _state_of(at: QueueAccess) -> SharedState:
    found = at.on.queue.shared_state
    if found is None:
        raise Problem(404, "this queue has no state that its processes share")
    return found


@router.get("/sites")
async def list_sites(at: ReadMails) -> SitesDocument:
    """List the sites that workers have mail for, the suspended ones, and what is rerouted."""
    found = await sites.listed_sites(_state_of(at), at.console.clock.now())
    items = [SiteDocument(**each.printed()) for each in found.sites]
    items += [
        SiteDocument(worker=None, site=None, domain=each.name, rerouted=sites.printed(each))
        for each in found.domains
    ]
    return SitesDocument(items=items, more=found.more)


@router.post("/sites/{site}:suspend")
async def suspend_site(at: ChangeQueue, site: str, wanted: SuspendRequest) -> SiteChanged:
    """Send no mail to a site for a time. Workers obey within seconds."""
    made, is_known = await sites.suspend(
        _state_of(at), at.console.clock.now(), site, wanted.duration, wanted.reason
    )
    audited(at, "suspend", site=site)
    return SiteChanged(until=made.until, notes=[] if is_known else [NOT_SHOWN])


@router.post("/sites/{site}:resume")
async def resume_site(at: ChangeQueue, site: str) -> SiteChanged:
    """Send mail to a suspended site again."""
    await sites.resume(_state_of(at), at.console.clock.now(), site)
    audited(at, "resume", site=site)
    return SiteChanged(until=None, notes=[])


@router.post("/sites/{site}:flush", status_code=202)
async def flush_site(at: ChangeQueue, site: str) -> SiteFlushed:
    """Let all workers try a site at once, and make its delayed mail due."""
    clock, name = at.console.clock, sites.site_name(site)
    tried = await sites.try_site(_state_of(at), clock, name)
    begun = await at.console.operations.begin(at.on, Operation.FLUSH, tried.selector, at.who.name)
    return SiteFlushed(id=begun.id, matched=begun.matched, notes=list(tried.problems))


@router.post("/sites/{site}:reroute")
async def reroute_site(at: ChangeQueue, site: str, wanted: RerouteRequest) -> SiteChanged:
    """Let the mail of a site, or of a domain, go elsewhere for a time; or end that."""
    state, now = _state_of(at), at.console.clock.now()
    is_domain = wanted.of is RerouteOf.DOMAIN
    name = ascii_domain(site) if is_domain else sites.site_name(site)
    given = (wanted.to, wanted.duration, wanted.reason)
    if wanted.end:
        if any(each is not None for each in (*given, wanted.tls)):
            raise InvalidInput("`end` goes without the other fields")
        await rerouting.end_reroute(state, now, wanted.of, name)
        audited(at, "end reroute", of=wanted.of.value, site=name)
        return SiteChanged(until=None, notes=[])
    if wanted.to is None or wanted.duration is None or wanted.reason is None:
        raise InvalidInput("give `to`, `duration` and `reason`, or `end`")
    target = rerouting.Target(wanted.to, wanted.tls)
    made, notes = await rerouting.reroute(
        state, now, wanted.of, name, target, wanted.duration, wanted.reason
    )
    audited(at, "reroute", of=wanted.of.value, site=name)
    return SiteChanged(until=made.until, notes=list(notes))
