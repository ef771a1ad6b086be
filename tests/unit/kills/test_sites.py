"""What sites answer follows from the addresses, and reports are read as their senders would."""

from __future__ import annotations

import random
from collections import Counter

from kills.ledger import ItemProgress
from kills.mails import draw_mails, is_refused
from kills.reports import Reports
from kills.sites import running_sites
from postroad.domain.mail.mail import Mail, OutcomeKind
from support.smtp_relay import hand_over, kinds, relay_to

DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED

REPORT = b"""Message-ID: <1@mx>
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status; boundary="b"

--b

Some recipients did not get it.
--b
Content-Type: message/delivery-status

Reporting-MTA: dns; mx

Final-Recipient: rfc822; no1x1@site0.example
Action: failed
Status: 5.1.1

Final-Recipient: rfc822; late1x2@site0.example
Action: delayed
Status: 4.2.1

--b--
"""


def test_mails_have_one_to_a_hundred_recipients_and_every_fate() -> None:
    mails = list(draw_mails(random.Random(1), 3000, 50))
    counts = Counter(len(each.recipients) for each in mails)
    keys = [key for each in mails for key in each.keys]

    assert (min(counts), max(counts)) == (1, 100)
    assert len(set(keys)) == len(keys)
    assert len({each.sender for each in mails}) == len(mails)
    assert 0.005 < sum(map(is_refused, keys)) / len(keys) < 0.02
    assert {each.rpartition("@")[2] for _, each in keys} == {f"site{n}.example" for n in range(50)}


async def test_sites_answer_by_addresses_and_note_what_they_accept() -> None:
    ledger, reports = ItemProgress(), Reports()
    yes, no, late = "yes1x0@site0.example", "no1x1@site0.example", "late1x2@site0.example"
    async with running_sites(1, ledger, reports) as (site,):
        relay = relay_to(site)
        outcomes = [
            kinds(await hand_over(relay, Mail(sender, to, content.replace(b"\n", b"\r\n"))))
            for sender, to, content in (
                ("m1@site0.example", (yes, no, late), b"\n"),
                ("m1@site0.example", (late,), b"\n"),
                ("end2@site0.example", (yes,), b"\n"),
                ("slow3@site0.example", (yes,), b"\n"),
                ("slow3@site0.example", (yes,), b"\n"),
                (None, ("m1@site0.example",), REPORT),
            )
        ]
        await relay.close()

    assert outcomes == [
        {yes: DELIVERED, no: FAILED, late: DEFERRED},
        {late: DELIVERED},
        {yes: FAILED},
        {yes: DEFERRED},
        {yes: DELIVERED},
        {"m1@site0.example": DELIVERED},
    ]
    assert [*ledger.copies] == [
        (("m1@site0.example", yes), ""),
        (("m1@site0.example", late), ""),
        (("slow3@site0.example", yes), ""),
        (("", "m1@site0.example"), "<1@mx>"),
    ]
    assert reports.names_by_key == {("m1@site0.example", no): {"<1@mx>"}}
