"""SASL mechanisms without a server."""

import base64

import pytest

from postroad.domain.smtp.sasl_client import LoginRefused, Mechanism, chosen, dialogue

RANDOM = base64.b64decode("rOprNGfwEbeRWgbNEkqO")
"""Whose text is the nonce of the example in RFC 7677."""

SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
"""Source: RFC 7677 3."""


def scram(password: str = "pencil", username: str = "user"):  # type: ignore[no-untyped-def]
    return dialogue(Mechanism.SCRAM_SHA_256, username, password, lambda count: RANDOM)


def test_scram_is_as_in_its_example() -> None:
    steps = scram()
    assert steps.initial == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert steps.respond(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert steps.respond(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == b""
    steps.check_success()


def test_scram_needs_the_servers_signature() -> None:
    steps = scram()
    steps.respond(SERVER_FIRST)
    with pytest.raises(LoginRefused, match="did not show"):
        steps.check_success()
    with pytest.raises(LoginRefused, match="signature"):
        steps.respond(b"v=" + base64.b64encode(b"x" * 32))


@pytest.mark.parametrize(
    "first",
    [
        SERVER_FIRST.replace(b"4096", b"4095"),
        SERVER_FIRST.replace(b"4096", b"1000001"),
        SERVER_FIRST.replace(b"r=rOpr", b"r=other"),
        SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""),
        SERVER_FIRST.replace(b"W22Z", b"===="),
        b"e=other-error",
        b"",
    ],
    ids=["few rounds", "many rounds", "other nonce", "no nonce", "salt", "error", "nothing"],
)
def test_scram_refuses_a_wrong_server(first: bytes) -> None:
    with pytest.raises(LoginRefused):
        scram().respond(first)


@pytest.mark.parametrize(
    ("given", "sent"),
    [("a,b=c", b"n=a=2Cb=3Dc,"), ("I\u00adX", b"n=IX,"), ("\u2168", b"n=IX,")],
    ids=["marks", "mapped to nothing", "compatible"],
)
def test_scram_prepares_names(given: str, sent: bytes) -> None:
    """Source: RFC 4013 3; RFC 5802 5.1."""
    assert sent in (scram(username=given).initial or b"")


@pytest.mark.parametrize("mechanism", Mechanism)
@pytest.mark.parametrize(("username", "password"), [("a\0b", "x"), ("a", ""), ("", "x")])
def test_names_and_passwords_that_no_mechanism_carries(
    mechanism: Mechanism, username: str, password: str
) -> None:
    with pytest.raises(LoginRefused):
        dialogue(mechanism, username, password, lambda count: RANDOM)


def test_a_token_cannot_add_fields() -> None:
    with pytest.raises(LoginRefused):
        dialogue(Mechanism.XOAUTH2, "a", "t\1user=b", lambda count: RANDOM)


def test_a_character_that_scram_forbids_is_refused() -> None:
    with pytest.raises(LoginRefused):
        scram(password="a\u0007")


@pytest.mark.parametrize(
    ("offered", "wanted", "expected"),
    [
        ({"PLAIN", "LOGIN", "SCRAM-SHA-256"}, None, Mechanism.SCRAM_SHA_256),
        ({"login"}, None, Mechanism.LOGIN),
        ({"XOAUTH2", "CRAM-MD5"}, None, None),
        ({"XOAUTH2", "PLAIN"}, Mechanism.XOAUTH2, Mechanism.XOAUTH2),
        ({"PLAIN"}, Mechanism.SCRAM_SHA_256, None),
    ],
)
def test_the_best_mechanism_is_chosen(
    offered: set[str], wanted: Mechanism | None, expected: Mechanism | None
) -> None:
    assert chosen(offered, wanted) == expected


def test_a_server_that_asks_on_gets_nothing_more() -> None:
    steps = dialogue(Mechanism.PLAIN, "a", "b", lambda count: RANDOM)
    with pytest.raises(LoginRefused):
        steps.respond(b"more")
