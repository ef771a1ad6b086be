"""What a reply to EHLO offers, also where a keyword stands in it twice."""

from __future__ import annotations

import pytest

from postroad.domain.smtp.replies import Reply
from postroad.domain.smtp.sasl_client import Mechanism, chosen
from postroad.smtp.client.opening import extensions_of
from postroad.smtp.client.transaction.commands import most_mails, most_octets, most_recipients


def offered(*lines: str) -> dict[str, str]:
    return extensions_of(Reply(250, ("hop.example", *lines)))


@pytest.mark.parametrize(
    "lines",
    [
        ("AUTH PLAIN LOGIN", "AUTH NTLM"),
        ("AUTH NTLM", "AUTH PLAIN LOGIN"),
        ("auth ntlm", "Auth=plain login"),
        ("AUTH=PLAIN LOGIN",),
        ("AUTH=PLAIN LOGIN", "AUTH PLAIN LOGIN"),
        ("AUTH", "AUTH PLAIN"),
        ("AUTH\tPLAIN", "AUTH"),
        ("  AUTH  PLAIN  ",),
        ("AUTH=", "AUTH NTLM PLAIN"),
    ],
)
def test_the_mechanisms_of_all_lines_are_offered(lines: tuple[str, ...]) -> None:
    assert chosen(offered(*lines)["AUTH"].split(), None) is Mechanism.PLAIN


@pytest.mark.parametrize(
    ("lines", "most"),
    [
        (("SIZE 1000", "SIZE"), 1000),
        (("SIZE", "SIZE 1000"), 1000),
        (("SIZE 2000", "size 1000", "SIZE 3000"), 1000),
        (("SIZE=1000",), 1000),
        (("SIZE 0", "SIZE 1000"), 1000),
        (("SIZE unlimited", "SIZE 1000"), 1000),
        (("SIZE 10 20", "SIZE 1000"), 1000),
        (("SIZE 10 20",), None),
        (("SIZE", "SIZE"), None),
        (("SIZE 0",), None),
        ((), None),
    ],
)
def test_the_smallest_size_limits_a_mail(lines: tuple[str, ...], most: int | None) -> None:
    assert most_octets(offered(*lines)) == most


@pytest.mark.parametrize(
    "lines",
    [
        ("LIMITS RCPTMAX=5 MAILMAX=2",),
        ("LIMITS RCPTMAX=5", "LIMITS MAILMAX=2"),
        ("LIMITS MAILMAX=2", "LIMITS rcptmax=5"),
        ("LIMITS RCPTMAX=5 MAILMAX=9", "limits MAILMAX=2 RCPTMAX=7"),
        ("LIMITS RCPTMAX=0 RCPTMAX=5 MAILMAX=x", "LIMITS MAILMAX=2"),
    ],
)
def test_the_limits_of_all_lines_are_kept(lines: tuple[str, ...]) -> None:
    assert (most_recipients(offered(*lines)), most_mails(offered(*lines))) == (5, 2)


def test_a_keyword_without_parameters_is_offered_in_any_case() -> None:
    assert set(offered("pipelining", "PIPELINING", "8bitmime ", "", " ", "=")) >= {
        "PIPELINING", "8BITMIME",
    }  # fmt: skip
    assert extensions_of(Reply(550, ("no", "PIPELINING"))) == {}
