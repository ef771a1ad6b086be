"""Mail that requires TLS on its whole way. Source: RFC 8689."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from postroad.domain.mail.mail import REQUIRE_TLS, OutcomeKind
from postroad.domain.smtp.next_hops import NextHop, TlsMode
from support.certificates import Certificates
from support.intake_files import TLS, RunningIntake, an_intake_by_file
from support.one_hop import OneHop
from support.sink import EXTENSIONS, Sink
from support.smtp_relay import a_mail, hand_over, relay_to

REQUIRED = replace(a_mail(), attributes={REQUIRE_TLS: "yes"})
TO = "b@dest.example"
OFFERED = (*EXTENSIONS, "REQUIRETLS")


@pytest.mark.parametrize(
    ("mode", "extensions", "is_delivered"),
    [
        (TlsMode.REQUIRED, OFFERED, True),
        (TlsMode.IMPLICIT, OFFERED, True),
        (TlsMode.REQUIRED, EXTENSIONS, False),
        (TlsMode.ENCRYPTED, OFFERED, False),
        (TlsMode.OPPORTUNISTIC, OFFERED, False),
        (TlsMode.NONE, OFFERED, False),
    ],
)
async def test_it_goes_over_verified_tls_to_a_next_hop_that_sees_to_it(
    certificates: Certificates, mode: TlsMode, extensions: tuple[str, ...], is_delivered: bool
) -> None:
    tls = certificates.server_context()
    async with Sink(tls=tls, implicit=mode is TlsMode.IMPLICIT, extensions=extensions) as sink:
        relay = relay_to(sink, mode, host="localhost", ca_file=certificates.authority)
        outcome = (await hand_over(relay, REQUIRED))[TO]
        other = (await hand_over(relay, a_mail()))[TO]
        await relay.close()

    assert other.kind is OutcomeKind.DELIVERED
    required, *_ = (*sink.mails, None) if is_delivered else (None,)
    if required is None:
        assert outcome.kind is OutcomeKind.FAILED
        assert outcome.text.startswith("550 5.7.30 ")
        assert len(sink.mails) == 1
    else:
        assert outcome.kind is OutcomeKind.DELIVERED
        assert (required.tls, "REQUIRETLS" in required.mail_parameters) == (True, True)
    assert "REQUIRETLS" not in sink.mails[-1].mail_parameters


async def test_it_goes_to_a_server_of_this_machine_without_tls(tmp_path: Path) -> None:
    async with Sink(socket=tmp_path / "lmtp", lmtp=True):
        relay = OneHop(NextHop.at_socket(tmp_path / "lmtp"), ehlo_name=None)
        outcome = (await hand_over(relay, REQUIRED))[TO]
        await relay.close()

    assert outcome.kind is OutcomeKind.DELIVERED


def said(running: RunningIntake, parameter: str, *, secured: bool = True) -> int:
    with running.client("relay", secured=secured) as client:
        client.ehlo()
        assert client.has_extn("requiretls") is secured
        code = client.mail("a@example.org", [parameter])[0]
        if code == 250:
            client.rcpt(TO)
            client.data(b"Subject: x\r\n\r\nx\r\n")
        return code


async def test_the_intake_takes_it_under_tls_alone(tmp_path: Path) -> None:
    document = {"listeners": [{"name": "relay", "role": "relay", "tls": TLS}]}
    async with an_intake_by_file(tmp_path, document) as running:
        codes = [
            await asyncio.to_thread(said, running, "REQUIRETLS"),
            await asyncio.to_thread(said, running, "REQUIRETLS=YES"),
            await asyncio.to_thread(lambda: said(running, "REQUIRETLS", secured=False)),
        ]

    assert codes == [250, 501, 555]
    ((mail, _),) = running.queue.mails
    assert mail.attributes == {REQUIRE_TLS: "yes"}
