"""`postroad mta` reports to senders: each refusal once, however often it is killed, and what DSN
asks for where the next hop does not report itself."""

from __future__ import annotations

import asyncio
import email
import email.policy
import smtplib
from collections import defaultdict
from email.message import EmailMessage
from pathlib import Path
from typing import cast

import pytest

from support.sink import EXTENSIONS, Rule, Sink
from support.small_mta import an_mta, kill_amid_mail, send, until_empty

SENDER = "a@origin.example"
WITHOUT_DSN = tuple(each for each in EXTENSIONS if each != "DSN")


def refuses(prefix: str) -> Rule:
    """Return a rule by which the next hop has no mailboxes with this prefix."""
    return lambda verb, argument: (
        "550 5.1.1 no such user"
        if verb == "RCPT" and argument.startswith(f"TO:<{prefix}")
        else None
    )


def reports_in(sink: Sink) -> list[EmailMessage]:
    return [
        email.message_from_bytes(each.content, policy=email.policy.default)
        for each in sink.mails
        if list(each.recipients) == [SENDER]
    ]


def groups_of(report: EmailMessage) -> list[dict[str, str]]:
    """The fields of a report about the mail, and then about each recipient."""
    status = cast("list[EmailMessage]", report.get_payload())[1]
    return [dict(each.items()) for each in cast("list[EmailMessage]", status.get_payload())]


async def test_killed_again_and_again_it_reports_each_refusal_once(tmp_path: Path) -> None:
    lives = [
        [[f"no{life}x{client}x{n}" for n in range(60)] for client in range(2)] for life in range(2)
    ]
    async with Sink(refuses("no")) as sink:
        accepted = await kill_amid_mail(tmp_path, tmp_path / "store", sink, lives, behind=10)

    reports = defaultdict[str, set[str]](set)
    for report in reports_in(sink):
        for fields in groups_of(report)[1:]:
            assert (fields["Action"], fields["Status"]) == ("failed", "5.1.1")
            reports[fields["Final-Recipient"]].add(report["Message-ID"])
    assert {f"rfc822;{name}@dest.example" for name in accepted} <= reports.keys()
    assert {len(each) for each in reports.values()} == {1}
    assert len(accepted) >= 2 * (10 - 2)  # the last mail of each client may lack its answer


@pytest.mark.parametrize("extensions", [EXTENSIONS, WITHOUT_DSN], ids=["dsn", "no dsn"])
async def test_what_dsn_asks_for_goes_to_the_next_hop_or_is_reported(
    tmp_path: Path, extensions: tuple[str, ...]
) -> None:
    root = tmp_path / "store"

    def ask(port: int) -> bool:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.ehlo()
            client.sendmail(
                SENDER,
                ["yes@dest.example", "silent@dest.example"],
                b"Subject: x\r\n\r\ny\r\n",
                mail_options=["RET=HDRS", "ENVID=QQ+2B1"],
                rcpt_options=["NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;old+2Bme@x.example"],
            )
            return client.has_extn("dsn")

    async with Sink(refuses("silent"), extensions=extensions) as sink:
        program, port = await an_mta(tmp_path, root, sink.port)
        is_offered = await asyncio.to_thread(ask, port)
        await until_empty(root)
        await program.stop()

    asked = [each for each in sink.commands if "yes@dest.example" in each or "ENVID" in each]
    (report,) = reports_in(sink)
    of_mail, *of_recipients = groups_of(report)
    assert is_offered
    assert any("ENVID=QQ+2B1" in each for each in asked) == ("DSN" in extensions)
    assert any("NOTIFY=SUCCESS,FAILURE" in each for each in asked) == ("DSN" in extensions)
    assert any("ORCPT=rfc822;old+2Bme@x.example" in each for each in asked) == ("DSN" in extensions)
    assert of_mail["Original-Envelope-Id"] == "QQ+1"
    assert [each["Action"] for each in of_recipients] == (
        ["failed"] if "DSN" in extensions else ["relayed", "failed"]
    )
    assert of_recipients[-1]["Original-Recipient"] == "rfc822;old+me@x.example"


async def test_switched_off_it_makes_no_report_and_offers_no_dsn(tmp_path: Path) -> None:
    root = tmp_path / "store"

    def is_offered(port: int) -> bool:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.ehlo()
            return client.has_extn("dsn")

    async with Sink(refuses("no")) as sink:
        program, port = await an_mta(
            tmp_path, root, sink.port, environment={"POSTROAD_REPORTS_ENABLED": "false"}
        )
        assert not await asyncio.to_thread(is_offered, port)
        assert await asyncio.to_thread(send, port, ["no"]) == ["no"]
        await until_empty(root)
        await program.stop()

    assert sink.mails == []


NOT_IN_SEVEN_BITS = {
    "latin": b"Subject: caf\xe9\r\n\r\nplain\r\n",
    "utf8": "Subject: café\r\n\r\nplain\r\n".encode(),
    "signed": b"DKIM-Signature: v=1; d=a.example; b=x\r\nSubject: x\r\n\r\ncaf\xe9\r\n",
    "preamble": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n\xe9\r\n--b\r\n\r\nx\r\n--b--",
    "encoded": b"Content-Transfer-Encoding: base64\r\n\r\n\xe9\r\n",
}


def send_contents(port: int, contents: dict[str, bytes], sender: str = SENDER) -> None:
    with smtplib.SMTP("127.0.0.1", port) as client:
        for name, content in contents.items():
            options = [] if sender.isascii() else ["SMTPUTF8"]
            client.sendmail(sender, [f"{name}@dest.example"], content, options)


async def test_mails_that_go_in_no_seven_bits_are_reported_in_seven_bits(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with Sink(extensions=("PIPELINING",)) as sink:
        program, port = await an_mta(tmp_path, root, sink.port)
        await asyncio.to_thread(send_contents, port, NOT_IN_SEVEN_BITS)
        await until_empty(root)
        await program.stop()

    reports = reports_in(sink)
    named = {groups_of(each)[1]["Final-Recipient"].partition(";")[2] for each in reports}
    assert named == {f"{name}@dest.example" for name in NOT_IN_SEVEN_BITS}
    assert len(sink.mails) == len(reports) == len(NOT_IN_SEVEN_BITS)
    assert all(each.content.isascii() for each in sink.mails)


def refuses_first_reports() -> Rule:
    """Return a rule that knows no recipients of dest.example, and refuses one report after it has
    read it."""
    senders: list[str] = []

    def rule(verb: str, argument: str) -> str | None:
        if verb == "MAIL":
            senders.append(argument)
        if verb == "RCPT" and "@dest.example" in argument:
            return "550 5.1.1 no such user"
        if verb == "DOT" and sum(each.startswith("FROM:<>") for each in senders) == 1:
            return "554 5.7.1 spam"
        return None

    return rule


@pytest.mark.parametrize(
    "extensions", [("SIZE 3000",), ()], ids=["too large by SIZE", "refused at the dot"]
)
async def test_a_report_that_is_refused_for_the_mail_in_it_comes_without(
    tmp_path: Path, extensions: tuple[str, ...]
) -> None:
    root = tmp_path / "store"
    rule = refuses("no") if extensions else refuses_first_reports()
    async with Sink(rule, extensions=extensions) as sink:
        program, port = await an_mta(tmp_path, root, sink.port)
        content = b"Subject: x\r\n\r\n" + b"some words\r\n" * 200
        await asyncio.to_thread(send_contents, port, {"no": content})
        await until_empty(root)
        await program.stop()

    (report,) = reports_in(sink)
    assert groups_of(report)[1]["Final-Recipient"] == "rfc822;no@dest.example"
    assert len(cast("list[EmailMessage]", report.get_payload())) == 2


async def test_the_administrator_gets_the_report_where_the_sender_needs_smtputf8(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    postmaster = "postmaster@origin.example"
    async with Sink(extensions=("8BITMIME",)) as sink:
        environment = {"POSTROAD_REPORTS_ADMINISTRATOR": postmaster}
        program, port = await an_mta(tmp_path, root, sink.port, environment=environment)
        mail = {"no": b"Subject: x\r\n\r\ny\r\n"}
        await asyncio.to_thread(send_contents, port, mail, "jörg@origin.example")
        await until_empty(root)
        await program.stop()

    (double,) = sink.mails
    assert double.recipients == [postmaster]
    assert double.content.isascii()
    assert rb"Final-Recipient: utf-8;j\x{F6}rg@origin.example" in double.content


async def test_of_a_mail_only_the_recipient_that_needs_smtputf8_fails_without_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"

    def hand_in(port: int) -> None:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.ehlo()
            client.sendmail(
                SENDER,
                ["yes@dest.example", "jörg@dest.example", "yes@bücher.example"],
                b"Subject: x\r\n\r\ny\r\n",
                mail_options=["SMTPUTF8"],
            )

    async with Sink(extensions=("PIPELINING",)) as sink:
        program, port = await an_mta(tmp_path, root, sink.port)
        await asyncio.to_thread(hand_in, port)
        await until_empty(root)
        await program.stop()

    assert {tuple(each.recipients) for each in sink.mails} == {
        ("yes@dest.example", "yes@xn--bcher-kva.example"),
        (SENDER,),
    }
    assert all(each.content.isascii() for each in sink.mails)
    assert b"5.6.7" in next(each.content for each in sink.mails if each.recipients == [SENDER])
