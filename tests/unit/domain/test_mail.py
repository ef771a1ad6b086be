from dataclasses import replace

import pytest

from postroad import Mail
from postroad.domain.delivery.retries import check_named
from postroad.domain.mail.mail import DsnOptions, Envelope, RecipientDsn
from postroad.domain.mail.shapes import shape_of
from postroad.errors import InvalidInput, InvalidMail


def mail(**changes: object) -> Mail:
    values: dict[str, object] = {
        "sender": "a@example.org",
        "recipients": ("b@example.net",),
        "content": b"Subject: hi\r\n\r\nhello\r\n",
    }
    return Mail(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "address",
    [
        "no-at-sign",
        "@example.org",
        "a@",
        "a b@example.org",
        "a@example.org\r\nRCPT TO:<c@example.org>",
        "<a@example.org>",
        "a" * 320 + "@example.org",
        "nul\0@example.org",
        "half\ud800@example.org",
        '"a@example.org',
        '"x"y z"@example.org',
        "a@example.org\u0085",
        "a@d..example.org",
        "a,b@example.org",
    ],
)
@pytest.mark.parametrize("field", ["sender", "recipients"])
def test_an_address_that_would_break_the_dialogue_is_refused(field: str, address: str) -> None:
    with pytest.raises(InvalidMail) as caught:
        mail(**{field: (address,) if field == "recipients" else address})

    assert "example.org" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["a@example.org", '"a b"@example.org', "postmaster", "ü@exämple.org", "a@[192.0.2.1]", "a+b@x"],
)
def test_unusual_addresses_are_taken(address: str) -> None:
    assert mail(recipients=(address,)).recipients == (address,)


def test_the_null_reverse_path_is_none() -> None:
    assert mail(sender=None).envelope.sender is None


def test_mail_without_recipients_is_refused() -> None:
    with pytest.raises(InvalidMail, match="recipient"):
        mail(recipients=())


def test_one_string_is_not_taken_for_a_list_of_dead_letters() -> None:
    with pytest.raises(InvalidMail, match="sequence"):
        mail(recipients="b@example.net")


def test_a_content_of_characters_is_refused_before_it_is_stored() -> None:
    with pytest.raises(InvalidMail, match="encode it"):
        mail(content="Subject: hi\r\n\r\nhello\r\n")


def test_reprs_show_no_address_and_no_content() -> None:
    shown = repr(mail()) + repr(mail().envelope)

    assert "example" not in shown
    assert "hello" not in shown


def test_a_mail_with_another_content_does_not_keep_the_shape_of_the_first() -> None:
    mail = Mail(None, ("to@example.com",), b"one\r\n").of_shape(shape_of((b"one\r\n",)))

    assert mail.shape is not None
    assert replace(mail, content=b".two").shape is None


def test_domains_are_lower_case_and_unique() -> None:
    recipients = ("a@B.example", "c@b.example", "d@a.example", "postmaster")

    assert mail(recipients=recipients).envelope.domains == ("", "a.example", "b.example")


@pytest.mark.parametrize(
    "options",
    [
        {"ret": "FULL\r\nRCPT TO:<c@d.example>"},
        {"ret": "full"},
        {"envid": "a\r\nb"},
        {"envid": "ä"},
    ],
)
def test_dsn_options_that_would_break_out_of_their_command_are_refused(
    options: dict[str, str],
) -> None:
    with pytest.raises(InvalidMail):
        DsnOptions(**options)  # type: ignore[arg-type]  # recipients is no text


@pytest.mark.parametrize(
    ("notify", "orcpt"),
    [
        (("SUCCESS", "NEVER\r\nDATA"), None),
        (("sometimes",), None),
        ((), "rfc822 X=Y;a@b.example"),
        ((), "rfc822;a\n"),
        ((), "no type"),
    ],
)
def test_dsn_options_of_a_recipient_are_held_to_their_grammar(
    notify: tuple[str, ...], orcpt: str | None
) -> None:
    with pytest.raises(InvalidMail):
        RecipientDsn(notify, orcpt)


def test_a_stored_envelope_is_read_though_new_mail_may_not_say_it() -> None:
    """A stricter grammar for what enters must make nothing unreadable that has entered."""
    assert Envelope(None, ("a,b@example.org",)).recipients == ("a,b@example.org",)


def test_a_domain_has_255_octets_at_most() -> None:
    assert Mail("a@x.example", ("b@" + "_" * 255,), b"")
    with pytest.raises(InvalidMail):
        Mail("a@x.example", ("b@" + "_" * 256,), b"")


@pytest.mark.parametrize("priority", [-101, 101, 1.5, "3", 1.0, True])
def test_a_priority_is_a_whole_number_within_bounds(priority: object) -> None:
    with pytest.raises(InvalidMail, match="-100 to 100"):
        Mail("a@x.example", ("b@x.example",), b"", priority=priority)  # type: ignore[arg-type]


class ReadOnce(tuple[str, ...]):
    """Recipients that are not searched for each of many names: that took minutes for 100,000."""

    __slots__ = ()

    def __contains__(self, _: object) -> bool:
        raise AssertionError


def test_names_are_compared_with_the_recipients_left_in_one_pass() -> None:
    left = ReadOnce(("b@x.example", "c@x.example"))

    check_named(["c@x.example", "b@x.example"], left)
    with pytest.raises(InvalidInput, match="1 of those named"):
        check_named(["c@x.example", "d@x.example"], left)
