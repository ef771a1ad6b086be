"""Sites, the suppression list and traces by the console's API, over a directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroad.domain.delivery.sites import FlushAck, SiteState, SiteView, published_views
from postroad.ports.delivery import Topic
from support.consoles import RunningConsole, a_console

BASE = "/api/v1/queues/local/store"
HOUR = timedelta(hours=1)


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[RunningConsole]:
    async with a_console(f"embedded://{tmp_path}/store") as running:
        shared_state = running.queue.shared_state
        assert shared_state is not None
        text = published_views([SiteView("mx.example", SiteState.ACTIVE, 2, 5, 1)])
        await shared_state.publish(Topic.WORKERS, "w1", text, HOUR)
        yield running


async def test_a_site_is_suspended_and_resumed(console: RunningConsole) -> None:
    client = console.client
    wanted = {"duration": "2h", "reason": "they asked"}

    made = await client.post(f"{BASE}/sites/mx.example:suspend", json=wanted)
    assert made.status_code == 200
    assert datetime.fromisoformat(made.json()["until"]) > datetime.now(UTC) + HOUR
    assert made.json()["notes"] == []
    [site] = (await client.get(f"{BASE}/sites")).json()["items"]
    assert (site["site"], site["state"], site["worker"]) == ("mx.example", "suspended", "w1")
    assert site["reason"] == "administrator: they asked"
    assert (await client.post(f"{BASE}/sites/mx.example:flush")).status_code == 422

    assert (await client.post(f"{BASE}/sites/mx.example:resume")).status_code == 200
    again = await client.post(f"{BASE}/sites/mx.example:resume")
    assert again.status_code == 422
    [site] = (await client.get(f"{BASE}/sites")).json()["items"]
    assert site["state"] == "active"
    unknown = await client.post(f"{BASE}/sites/[::1]:25:suspend", json=wanted)
    assert "no worker shows" in unknown.json()["notes"][0]


@pytest.mark.parametrize(
    "wanted",
    [{}, {"duration": "0s", "reason": "x"}, {"duration": "721h", "reason": "x"},
     {"duration": "1h", "reason": "\n"}, {"duration": "1h", "reason": "x", "more": 1}],
)  # fmt: skip
async def test_a_wrong_suspension_is_refused(
    console: RunningConsole, wanted: dict[str, str]
) -> None:
    answer = await console.client.post(f"{BASE}/sites/mx.example:suspend", json=wanted)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_site_and_a_domain_are_rerouted(console: RunningConsole) -> None:
    client = console.client
    wanted = {"to": "relay.example:25", "duration": "1h", "reason": "they move"}

    site = await client.post(f"{BASE}/sites/mx.example:reroute", json=wanted)
    domain = {**wanted, "of": "domain"}
    other = await client.post(f"{BASE}/sites/Example.ORG:reroute", json=domain)
    assert (site.status_code, other.status_code) == (200, 200)
    shown = (await client.get(f"{BASE}/sites")).json()["items"]
    assert [(each["site"], each["domain"]) for each in shown] == [
        ("mx.example", None),
        (None, "example.org"),
    ]
    assert all(each["rerouted"]["to"].startswith("relay.example:25") for each in shown)

    ended = await client.post(f"{BASE}/sites/mx.example:reroute", json={"end": True})
    assert ended.status_code == 200
    for wrong in ({"end": True}, {**wanted, "end": True}, {"to": "x:25"}, {**wanted, "to": "a b"}):
        answer = await client.post(f"{BASE}/sites/mx.example:reroute", json=wrong)
        assert answer.status_code == 422, wrong


async def test_an_address_is_suppressed_and_mailed_again(console: RunningConsole) -> None:
    client, path = console.client, f"{BASE}/suppressions"
    for number in range(5):
        put = await client.put(f"{path}/a{number}@example.org", json={"reason": "asked"})
        assert put.status_code == 204
    slash = await client.put(f"{path}/a/b@example.org?tenant=acme", json={"lifetime": "1h"})
    assert slash.status_code == 204

    pages: list[list[str]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await client.get(path, params={"limit": 2, "cursor": cursor})).json()
        pages.append([each["address"] for each in page["items"]])
        cursor = page["next"]
    listed = sorted(each for page in pages for each in page)
    assert listed == [f"a{number}@example.org" for number in range(5)]
    assert [len(each) for each in pages] == [2, 2, 1]
    [other] = (await client.get(path, params={"tenant": "acme"})).json()["items"]
    assert (other["address"], other["reason"]) == ("a/b@example.org", "by an administrator")
    assert other["expiresAt"]

    assert (await client.delete(f"{path}/A1@example.org")).status_code == 204
    assert (await client.delete(f"{path}/a1@example.org")).status_code == 404
    for wrong in ("a b@example.org", "x@", "%00@example.org", "@"):
        assert (await client.put(f"{path}/{wrong}", json={})).status_code == 422
    assert (await client.get(path, params={"cursor": "abc"})).status_code == 422
    assert (await client.get(path, params={"tenant": "\x00"})).status_code == 422


async def test_a_flush_of_a_site_asks_workers_first(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_state = console.queue.shared_state
    assert shared_state is not None
    monkeypatch.setattr("postroad.administration.sites.uuid4", lambda: _Number())
    ack = FlushAck("w1", "mx.example", "7", ("example.net",))
    await shared_state.publish(Topic.FLUSHED, ack.name, ack.text(), HOUR)

    begun = await console.client.post(f"{BASE}/sites/mx.example:flush")

    assert begun.status_code == 202
    assert (begun.json()["matched"], begun.json()["notes"]) == (0, [])
    done = await console.client.get(f"{BASE}/operations/{begun.json()['id']}")
    assert done.json()["operation"] == "flush"


class _Number:
    """The number of a request to flush."""

    hex = "7"


@pytest.mark.parametrize("folder", [None, "missing"])
async def test_a_trace_needs_an_attempt_log(folder: str | None, tmp_path: Path) -> None:
    log = None if folder is None else tmp_path / folder
    async with a_console(f"embedded://{tmp_path}/store", attempt_log=log) as console:
        answer = await console.client.get(f"{BASE}/trace", params={"recipient": "b@example.net"})

    assert answer.status_code == 404
    assert "--log" in answer.json()["detail"]
