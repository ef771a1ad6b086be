"""The login at a next hop: what goes over the wire, and what becomes of mail when it fails."""

from pathlib import Path

import pytest

from postroad.domain.mail.mail import OutcomeKind
from postroad.domain.smtp.next_hops import HopLogin, NextHop, TlsMode
from postroad.domain.smtp.sasl_client import Mechanism
from postroad.ports.delivery import ConnectionClosed
from postroad.routing.routes import ResolvedHop
from postroad.smtp.client.authentication import NO_LOGIN
from postroad.smtp.client.connections import SmtpConnector
from support.certificates import Certificates
from support.connections import Events, a_job
from support.one_hop import OneHop
from support.sasl_server import SaslServer
from support.sink import EXTENSIONS, Sink
from support.smtp_relay import a_mail, hand_over, kinds

DELIVERED = {"b@dest.example": OutcomeKind.DELIVERED}
DEFERRED = {"b@dest.example": OutcomeKind.DEFERRED}
ALL = (*EXTENSIONS, "AUTH PLAIN LOGIN XOAUTH2 SCRAM-SHA-256")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_login(tmp_path, "us,er=1", "pass word\u00e9")
    return tmp_path


def write_login(folder: Path, username: str, password: str) -> None:
    (folder / "username").write_text(username)
    (folder / "password").write_text(password + "\n")


def a_user(**wrong: object) -> SaslServer:
    return SaslServer("us,er=1", "pass word\u00e9", **wrong)  # type: ignore[arg-type]


def relay_of(
    sink: Sink, certificates: Certificates, login: HopLogin, tls: TlsMode = TlsMode.REQUIRED
) -> OneHop:
    hop = NextHop("localhost", sink.port, tls, login=login)
    return OneHop(hop, ehlo_name="relay.example", ca_file=certificates.authority)


@pytest.mark.parametrize("mechanism", [None, *Mechanism])
async def test_a_mail_goes_after_the_login(
    certificates: Certificates, folder: Path, mechanism: Mechanism | None
) -> None:
    tls = certificates.server_context()
    async with Sink(tls=tls, extensions=ALL, users=a_user()) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder, mechanism))
        assert kinds(await hand_over(relay, a_mail())) == DELIVERED
        await relay.close()

    used = mechanism or Mechanism.SCRAM_SHA_256
    (command,) = [each for each in sink.commands if each.startswith("AUTH")]
    assert command.startswith(f"AUTH {used}")
    verbs = [each.partition(" ")[0] for each in sink.commands]
    assert verbs.index("AUTH") > verbs.index("STARTTLS")
    assert verbs.index("MAIL") > verbs.index("AUTH")


async def test_a_long_token_stands_on_a_line_of_its_own(
    certificates: Certificates, folder: Path
) -> None:
    token = "t" * 2000
    write_login(folder, "user", token)
    users = SaslServer("user", token)
    async with Sink(tls=certificates.server_context(), extensions=ALL, users=users) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder, Mechanism.XOAUTH2))
        assert kinds(await hand_over(relay, a_mail())) == DELIVERED
        await relay.close()

    assert "AUTH XOAUTH2" in sink.commands


@pytest.mark.parametrize("tls", [TlsMode.NONE, TlsMode.OPPORTUNISTIC])
async def test_no_login_goes_where_the_certificate_is_not_verified(
    certificates: Certificates, folder: Path, tls: TlsMode
) -> None:
    context = certificates.server_context()
    async with Sink(tls=context, extensions=ALL, users=a_user()) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder), tls)
        outcomes = await hand_over(relay, a_mail())
        await relay.close()
        permitted = relay_of(sink, certificates, HopLogin(folder, is_sent_unverified=True), tls)
        users_before = sum(each.startswith("AUTH") for each in sink.commands)
        assert kinds(await hand_over(permitted, a_mail())) == DELIVERED
        await permitted.close()

    assert kinds(outcomes) == DEFERRED
    assert "was not verified" in outcomes["b@dest.example"].text
    assert users_before == 0


@pytest.mark.parametrize("extensions", [EXTENSIONS, (*EXTENSIONS, "AUTH CRAM-MD5")])
async def test_a_next_hop_without_a_known_login_defers(
    certificates: Certificates, folder: Path, extensions: tuple[str, ...]
) -> None:
    async with Sink(tls=certificates.server_context(), extensions=extensions) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder))
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == DEFERRED
    assert not sink.mails


WRONG = {
    "password": {"password": "another"},
    "forged": {"forged": b"Zm9yZ2Vk"},
    "unsigned": {"leaves_out_signature": True},
    "few rounds": {"rounds": 1},
    "nonce": {"nonce": "another"},
}


@pytest.mark.parametrize("wrong", list(WRONG.values()), ids=list(WRONG))
async def test_a_refused_login_defers_and_is_not_tried_again_until_it_is_renewed(
    certificates: Certificates, folder: Path, wrong: dict[str, object]
) -> None:
    users = a_user()
    for name, value in wrong.items():
        setattr(users, name, value)
    async with Sink(tls=certificates.server_context(), extensions=ALL, users=users) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder, Mechanism.SCRAM_SHA_256))
        texts = []
        for _ in range(3):
            outcomes = await hand_over(relay, a_mail())
            assert kinds(outcomes) == DEFERRED
            texts.append(outcomes["b@dest.example"].text)
        connections = sink.connections

        right = a_user()
        for name in wrong:
            setattr(users, name, getattr(right, name))
        users.password = "renewed"
        write_login(folder, "us,er=1", "renewed")
        assert kinds(await hand_over(relay, a_mail())) == DELIVERED
        await relay.close()

    assert (users.attempts, connections) == (2, 1)
    assert len(set(texts)) == 1
    assert "login" in texts[0]
    assert "pass word" not in texts[0]


async def test_a_login_that_is_refused_for_now_is_tried_again(
    certificates: Certificates, folder: Path
) -> None:
    busy = ["454 4.7.0 later"]

    def rule(verb: str, argument: str) -> str | None:
        return busy.pop() if verb == "AUTH" and busy else None

    users = a_user()
    async with Sink(rule, tls=certificates.server_context(), extensions=ALL, users=users) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder))
        outcomes = await hand_over(relay, a_mail())
        assert kinds(outcomes) == DEFERRED
        assert "454 4.7.0 later" in outcomes["b@dest.example"].text
        assert kinds(await hand_over(relay, a_mail())) == DELIVERED
        await relay.close()


async def test_missing_files_of_a_login_defer_before_a_connection(
    certificates: Certificates, folder: Path
) -> None:
    (folder / "password").unlink()
    async with Sink(tls=certificates.server_context(), extensions=ALL, users=a_user()) as sink:
        relay = relay_of(sink, certificates, HopLogin(folder))
        outcomes = await hand_over(relay, a_mail())
        await relay.close()

    assert kinds(outcomes) == DEFERRED
    text = outcomes["b@dest.example"].text
    assert text == NO_LOGIN, "a report to the sender has it: it names no file"
    assert sink.connections == 0


async def test_a_connection_logs_in_and_one_that_cannot_leaves_its_jobs_untried(
    certificates: Certificates, folder: Path
) -> None:
    users = a_user()
    async with Sink(tls=certificates.server_context(), extensions=ALL, users=users) as sink:
        hop = NextHop("localhost", sink.port, TlsMode.REQUIRED, login=HopLogin(folder))
        connector = SmtpConnector(ehlo_name="relay.example", ca_file=certificates.authority)
        events = Events()
        connection = connector.open(ResolvedHop(hop, ("127.0.0.1",)), events)
        connection.submit(a_job(1))
        await events.until_finished(1)
        connection.close()
        await events.until_closed()
        assert events.finished == {1: {"b1@dest.example": OutcomeKind.DELIVERED}}

        users.password = "another"
        refused = Events()
        connection = connector.open(ResolvedHop(hop, ("127.0.0.1",)), refused)
        connection.submit(a_job(2))
        closed = await refused.until_closed()
        assert isinstance(closed, ConnectionClosed)
        assert closed.untried == (2,)
        assert "login" in closed.text
