"""Chromium walks stories of an administrator over the console's page at three widths in both
schemes; axe looks at each page. CONSOLE_SCREENSHOT=docs/console.png keeps the picture of docs."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from postroad import Mail, Selector, open_queue
from postroad.adapters.clocks import MachineClock
from postroad.console.api.access import Console
from postroad.console.api.server import ConsoleServer, serve
from postroad.console.queues import ConsoleQueue, OpenQueues, names_of
from postroad.console.rights import SessionRights
from postroad.ports.mail_queue import MailQueue
from postroad.telemetry.health import Readiness

pytestmark = pytest.mark.needs("chromium")

WIDTHS = (360, 1280, 3840)
HOME = "/queues/local/outgoing"
PARTS = (
    "",
    "/mails",
    "/dead-letters",
    "/sites",
    "/suppressions",
    "/trace",
    "/configuration",
)
DOMAINS = ("example.net", "mail.example", "department.university.example")
HOSTILE = '554 5.7.1 <img src="http://evil.example/x"><script>document.title="x"</script> \u202egpj'
REASONS = ("550 5.1.1 no such user", "552 5.2.2 mailbox full", HOSTILE)


@dataclass
class Visit:
    """A page of a browser that has opened the link, and its queue. `wrong` has what the browser
    complained about, and each request elsewhere."""

    page: Page
    queue: MailQueue
    base: str
    wrong: list[str]

    async def open(self, path: str) -> None:
        await self.page.goto(self.base + path)


@asynccontextmanager
async def visiting(
    folder: Path, width: int, scheme: str = "light", *, scripts: bool = True
) -> AsyncIterator[Visit]:
    url = f"embedded://{folder / 'outgoing'}"
    listening, stop = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    async with await open_queue(url, create=True) as queue, async_playwright() as playwright:
        await fill(queue)
        queues = OpenQueues([ConsoleQueue(names_of([url])[0], queue)])
        console = Console.over(queues, SessionRights(), MachineClock())
        server = ConsoleServer(listening, console, Readiness())
        serving = asyncio.create_task(serve(server, stop))
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        try:
            yield await a_visit(browser, queue, server.new_link(), width, scheme, scripts=scripts)
        finally:
            await browser.close()
            stop.set()
            await serving
            await console.operations.close()


async def a_visit(
    browser: Browser, queue: MailQueue, link: str, width: int, scheme: str, *, scripts: bool
) -> Visit:
    page = await browser.new_page(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        timezone_id="Asia/Kolkata",
        java_script_enabled=scripts,
    )
    base = link.partition("/?")[0]
    visit = Visit(page, queue, base, [])
    page.on("console", lambda message: visit.wrong.append(message.text))
    page.on("pageerror", lambda error: visit.wrong.append(str(error)))
    page.on(
        "request",
        lambda sent: None if sent.url.startswith(base) else visit.wrong.append(sent.url),
    )
    await page.goto(link)
    return visit


async def fill(queue: MailQueue) -> None:
    """Queue mail in each state."""
    for number in range(6):
        await queue.enqueue(a_mail(number, "gone.example"))
    async for item in queue.dequeue(1):
        number = int((item.mail.sender or "").split("@")[0].removeprefix("orders"))
        await item.reject(REASONS[number % 3])
        if number == 5:
            break
    for number in range(4):
        await queue.enqueue(a_mail(number, DOMAINS[0]))
    seen = 0
    async for item in queue.dequeue(1):
        await item.retry(timedelta(minutes=20), error="451 4.7.1 greylisted, try again later")
        seen += 1
        if seen == 4:
            break
    for number in range(9):
        delay = timedelta(hours=number % 2)
        await queue.enqueue(a_mail(number + 10, DOMAINS[number % 3]), delay)
    await queue.hold(Selector(sender="orders12@shop.example"))


def a_mail(number: int, domain: str) -> Mail:
    content = b"Subject: order\r\n\r\n" + b"thank you\r\n" * 300 * (number + 1)
    recipients = (f"customer{number}@{domain}",)
    return Mail(content=content, sender=f"orders{number}@shop.example", recipients=recipients)


async def check_page(visit: Visit) -> None:
    """Check that a page fits its width, loads nothing from elsewhere, and what axe sees."""
    await visit.page.wait_for_load_state()
    wide = await visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{visit.page.url} is wider than the window by {wide} px"
    found = (await Axe().run(visit.page)).response["violations"]
    assert found == [], (visit.page.url, [(each["id"], each["nodes"]) for each in found])
    assert visit.wrong == []


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light"), (2560, "dark")])
async def test_axe_finds_nothing(tmp_path: Path, width: int, scheme: str) -> None:
    async with visiting(tmp_path, width, scheme) as visit:
        await expect(visit.page.get_by_role("heading", level=1)).to_have_text("Queues")
        await check_page(visit)
        for path in PARTS:
            await visit.open(HOME + path)
            await check_page(visit)
        await visit.open(f"{HOME}/mails?domain={DOMAINS[0]}")
        await check_page(visit)
        if (picture := os.environ.get("CONSOLE_SCREENSHOT")) and (width, scheme) == (1280, "light"):
            await visit.page.screenshot(path=picture)
        await visit.page.locator("a.who").first.click()
        await check_page(visit)


async def find_hold_and_release_a_mail(visit: Visit) -> None:
    page = visit.page
    await page.get_by_role("link", name="local/outgoing").click()
    await page.get_by_role("link", name="Mail", exact=True).click()
    await page.get_by_label("Text").fill("orders10")
    await page.keyboard.press("Enter")
    await page.locator("a.who").click()
    await expect(page.locator(".path time").first).to_contain_text("UTC)")
    await page.get_by_role("button", name="Hold").click()
    await expect(page.get_by_role("status")).to_have_text("This mail was held.")
    assert (await visit.queue.size()).held == 2
    await page.get_by_role("button", name="Release").click()
    await expect(page.get_by_role("status")).to_have_text("This mail was released.")
    assert (await visit.queue.size()).held == 1


async def see_why_a_mail_waits_and_save_it(visit: Visit) -> None:
    page = visit.page
    await visit.open(f"{HOME}/mails?domain={DOMAINS[0]}&state=delayed")
    await page.locator("a.who").first.click()
    await expect(page.locator(".why")).to_contain_text("451 4.7.1 greylisted")
    await expect(page.locator(".path")).to_contain_text("1 attempt.")
    async with page.expect_download() as saving:
        await page.get_by_role("link", name="Save its content").click()
    assert (await saving.value).suggested_filename.endswith(".eml")


async def follow_a_number_of_the_ages(visit: Visit) -> None:
    await visit.open(HOME)
    row = visit.page.get_by_role("row", name=DOMAINS[1])
    number = row.get_by_role("link").first
    count = int(await number.inner_text())
    await number.click()
    await expect(visit.page.locator("li.mail")).to_have_count(count)


async def remove_mails_after_a_confirmation(visit: Visit) -> None:
    page, before = visit.page, (await visit.queue.size()).size
    await visit.open(f"{HOME}/mails?domain={DOMAINS[2]}")
    await page.get_by_role("group", name="With all mails").get_by_text("Remove").click()
    await expect(page.get_by_text("Remove 3 mails?")).to_be_visible()
    await check_page(visit)
    assert (await visit.queue.size()).size == before
    await page.get_by_role("button", name="Remove 3").click()
    await expect(page.get_by_role("status")).to_have_text("Done: 3 of 3 removed")
    assert (await visit.queue.size()).size == before - 3


async def hold_all_of_a_search_and_undo_it(visit: Visit) -> None:
    page, before = visit.page, (await visit.queue.size()).held
    await visit.open(f"{HOME}/mails?domain={DOMAINS[1]}")
    await page.get_by_role("group", name="With all mails").get_by_text("Hold").click()
    await page.get_by_role("button", name="Hold 3").click()
    await expect(page.get_by_role("status")).to_have_text("Done: 3 of 3 held")
    assert (await visit.queue.size()).held == before + 3
    await check_page(visit)
    await page.get_by_role("button", name="Undo").click()
    await page.get_by_role("button", name="Release 3").click()
    await expect(page.get_by_role("status")).to_have_text("Done: 3 of 3 released")
    assert (await visit.queue.size()).held == before


async def give_a_mail_up(visit: Visit) -> None:
    page, before = visit.page, (await visit.queue.size()).dead_letters
    await visit.open(f"{HOME}/mails?q=orders11")
    await page.locator("a.who").click()
    await page.get_by_role("button", name="Give up").click()
    await page.get_by_role("button", name="Give up 1").click()
    await expect(page.get_by_role("status")).to_contain_text("given up")
    assert (await visit.queue.size()).dead_letters == (before or 0) + 1


async def requeue_dead_letters_of_a_reason(visit: Visit) -> None:
    page, before = visit.page, (await visit.queue.size()).dead_letters
    await visit.open(f"{HOME}/dead-letters")
    group = page.locator("details.group", has_text="evil.example")
    await group.locator("summary").click()
    await expect(group.locator(".hidden-character").first).to_have_text("U+202E")
    await group.get_by_role("button", name="Requeue").click()
    await page.get_by_role("button", name="Requeue 2").click()
    await expect(page.get_by_role("status")).to_have_text("2 of 2 requeued.")
    assert (await visit.queue.size()).dead_letters == (before or 0) - 2


async def suspend_a_site_and_resume_it(visit: Visit) -> None:
    page = visit.page
    await visit.open(f"{HOME}/sites")
    form = page.locator("form[aria-labelledby=suspend]")
    await form.get_by_label("Site").fill("mx.example")
    await form.get_by_label("Reason").fill("they asked us to wait")
    await form.get_by_role("button", name="Suspend").click()
    await expect(page.get_by_role("status")).to_contain_text("The site is suspended")
    await expect(page.locator("ul.sites")).to_contain_text("they asked us to wait")
    await check_page(visit)
    await page.locator("ul.sites").get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status")).to_have_text("The site gets mail again.")


async def suppress_an_address_and_mail_it_again(visit: Visit) -> None:
    page = visit.page
    await visit.open(f"{HOME}/suppressions")
    await page.get_by_label("Address").fill("b@example.net")
    await page.get_by_role("button", name="Put on the list").click()
    await expect(page.get_by_role("status")).to_have_text("The address is on the list.")
    await check_page(visit)
    await page.get_by_role("button", name="Take off b@example.net").click()
    await expect(page.get_by_role("status")).to_have_text("The address is off the list.")


async def watch_numbers_that_refresh_by_themselves(visit: Visit) -> None:
    page, before = visit.page, (await visit.queue.size()).size
    await visit.open(HOME)
    await page.get_by_role("link", name="Refresh by itself").click()
    await visit.queue.enqueue(a_mail(30, DOMAINS[0]))
    waiting = page.locator(".numbers div").first
    await expect(waiting).to_contain_text(str(before + 1), timeout=30_000)
    await check_page(visit)


async def log_out(visit: Visit) -> None:
    page = visit.page
    await visit.open(f"{HOME}/mails")
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    assert len(visit.wrong) == 1, "the status 401 of the page, and of none of its files"
    visit.wrong.clear()


STORIES = (
    find_hold_and_release_a_mail,
    see_why_a_mail_waits_and_save_it,
    follow_a_number_of_the_ages,
    remove_mails_after_a_confirmation,
    hold_all_of_a_search_and_undo_it,
    give_a_mail_up,
    requeue_dead_letters_of_a_reason,
    suspend_a_site_and_resume_it,
    suppress_an_address_and_mail_it_again,
    watch_numbers_that_refresh_by_themselves,
    log_out,
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_an_administrator_walks_the_stories(tmp_path: Path, width: int, scheme: str) -> None:
    async with visiting(tmp_path, width, scheme) as visit:
        for story in STORIES:
            await story(visit)
            await check_page(visit)


async def test_a_page_is_used_without_scripts(tmp_path: Path) -> None:
    async with visiting(tmp_path, 360, scripts=False) as visit:
        page = visit.page
        await visit.open(f"{HOME}/mails?q=orders10")
        await page.locator("a.who").click()
        await expect(page.locator(".path time").first).to_have_text(re.compile(r"^[-\d: ]+ UTC$"))
        await page.get_by_role("button", name="Hold").click()
        await expect(page.get_by_role("status")).to_have_text("This mail was held.")
        assert (await visit.queue.size()).held == 2


async def test_a_page_is_used_by_the_keyboard_alone(tmp_path: Path) -> None:
    async with visiting(tmp_path, 1280) as visit:
        page = visit.page
        await visit.open(f"{HOME}/mails")
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("Skip to content")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Tab")
        await expect(page.get_by_label("Text")).to_be_focused()
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
