"""Implicit TLS: neither the relay nor a client sends an octet in clear. Source: RFC 8314 3."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import uvloop

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import Protocol, TlsMode
from support.certificates import Certificates
from support.sink import EXTENSIONS, Sink
from support.smtp_relay import a_mail, hand_over, kinds, relay_to

DELIVERED = {"b@dest.example": OutcomeKind.DELIVERED}
DEFERRED = {"b@dest.example": OutcomeKind.DEFERRED}


async def handed_over(
    sink: Sink, ca_file: Path | None, host: str = "localhost", protocol: Protocol = Protocol.SMTP
) -> tuple[dict[str, OutcomeKind], str]:
    """Return the outcome of a mail and its text."""
    relay = relay_to(sink, TlsMode.IMPLICIT, host=host, ca_file=ca_file, protocol=protocol)
    outcomes = await hand_over(relay, a_mail())
    await relay.close()
    return kinds(outcomes), outcomes["b@dest.example"].text


@pytest.mark.parametrize("protocol", Protocol)
async def test_a_mail_goes_to_a_next_hop_that_the_authority_vouches_for(
    certificates: Certificates, protocol: Protocol
) -> None:
    is_lmtp = protocol is Protocol.LMTP
    tls = certificates.server_context()
    async with Sink(tls=tls, implicit=True, lmtp=is_lmtp) as sink:
        kind, _ = await handed_over(sink, certificates.authority, protocol=protocol)

    assert kind == DELIVERED
    assert [each.tls for each in sink.mails] == [True]
    assert "STARTTLS" not in sink.commands


def test_it_goes_so_on_uvloop_as_in_the_pods(certificates: Certificates) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            test_a_mail_goes_to_a_next_hop_that_the_authority_vouches_for(
                certificates, Protocol.SMTP
            )
        )
        runner.run(test_a_next_hop_without_tls_at_connect_gets_no_command(certificates, (), True))


async def test_the_dot_behind_a_full_name_is_no_part_of_a_certificates_name(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(host: str, port: int, **options: object) -> object:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with Sink(tls=certificates.server_context(), implicit=True) as sink:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
            kind, said = await handed_over(sink, certificates.authority, "localhost.")

    assert kind == DELIVERED, said


@pytest.mark.parametrize(
    ("trusted", "host", "said"),
    [
        (False, "localhost", "the next hop's certificate is not accepted"),
        (True, "127.0.0.1", "name the next hop as its certificate does"),
    ],
    ids=["another authority", "another name"],
)
async def test_a_certificate_that_does_not_verify_is_handed_nothing(
    certificates: Certificates, trusted: bool, host: str, said: str
) -> None:
    async with Sink(tls=certificates.server_context(), implicit=True) as sink:
        kind, text = await handed_over(sink, certificates.authority if trusted else None, host)

    assert kind == DEFERRED
    assert text.startswith("451 4.7.5 ")
    assert said in text
    assert (sink.commands, sink.mails) == ([], [])


@pytest.mark.parametrize("extensions", [EXTENSIONS, (*EXTENSIONS, "STARTTLS")])
@pytest.mark.parametrize("greets", [True, False])
async def test_a_next_hop_without_tls_at_connect_gets_no_command(
    certificates: Certificates, extensions: tuple[str, ...], greets: bool
) -> None:
    """Implicit TLS stays as strict for a server that greets in clear or offers STARTTLS."""
    rule = None if greets else (lambda verb, argument: "hang up" if verb == "CONNECT" else None)
    async with Sink(rule, extensions=extensions) as sink:
        kind, said = await handed_over(sink, certificates.authority)

    assert kind == DEFERRED
    assert said.startswith("451 4.7.5 ")
    assert not greets or "TLS at this" in said
    assert (sink.commands, sink.mails) == ([], [])


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("mode", [TlsMode.OPPORTUNISTIC, TlsMode.REQUIRED, TlsMode.IMPLICIT])
async def test_tls_is_spoken_from_1_2_on(certificates: Certificates, mode: TlsMode) -> None:
    """An opportunistic relay goes on in clear, as after any TLS that fails."""
    old = certificates.server_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.minimum_version = ssl.TLSVersion.TLSv1
    async with Sink(tls=old, implicit=mode is TlsMode.IMPLICIT) as sink:
        relay = relay_to(sink, mode, host="localhost", ca_file=certificates.authority)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == (DELIVERED if mode is TlsMode.OPPORTUNISTIC else DEFERRED)
    assert not any(each.tls for each in sink.mails)
