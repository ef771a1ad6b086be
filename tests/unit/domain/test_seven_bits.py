"""Mail in 8 bits is converted to 7 without loss, and not at all where that would take a guess."""

from __future__ import annotations

import re
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail import seven_bits
from postroad.domain.mail.seven_bits import DEEPEST, MAX_PARTS, PIECE, is_signed
from postroad.domain.mail.shapes import has_bare_line_ends, shape_of, with_crlf

UTF8 = b"Content-Type: text/plain; charset=utf-8\r\n"
EIGHT = b"Content-Transfer-Encoding: 8bit\r\n"
GREETING = "Grüße\r\n".encode()


def in_seven_bits(mail: bytes) -> bytes | None:
    """A mail, converted to the end."""
    content = with_crlf(mail) if has_bare_line_ends(mail) else mail
    steps = seven_bits.in_seven_bits(content)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return None if end.value is None else b"".join(end.value)


def leaves(mail: bytes) -> list[tuple[str, object]]:
    """Types and decoded bodies of all parts, as another parser reads them."""
    return [
        (part.get_content_type(), part.get_payload(decode=True))
        for part in message_from_bytes(mail).walk()
        if not part.is_multipart()
    ]


def multipart(*parts: bytes, subtype: bytes = b"mixed", boundary: bytes = b"b") -> bytes:
    header = b'Content-Type: multipart/%s; boundary="%s"\r\n\r\n' % (subtype, boundary)
    lines = b"".join(b"--%s\r\n%s\r\n" % (boundary, part) for part in parts)
    return header + b"preamble\r\n" + lines + b"--%s-- \r\nepilogue\r\n" % boundary


texts = st.lists(
    st.sampled_from([b"\xff", b"\xc3\xbc", b"=", b" ", b"\t", b"\r\n", b"\r\n.", b"From ", b"\0"])
    | st.sampled_from([b"word " * 30, b"--b", b"\r\n--b--b", b"a", b"\xe2\x82\xac" * 40])
).map(b"".join)


@given(texts, st.sampled_from([b"text/plain", b"application/octet-stream", b"text/html"]))
def test_a_body_comes_back_from_its_encoding_octet_for_octet(body: bytes, kind: bytes) -> None:
    mail = b"Subject: x\r\nMIME-Version: 1.0\r\nContent-Type: %s\r\n\r\n%s\xff" % (kind, body)

    converted = in_seven_bits(mail)

    assert converted is not None
    assert converted.isascii()
    assert leaves(converted) == [(kind.decode(), with_crlf(body + b"\xff"))]
    shape = shape_of((converted,))
    assert (shape.bare_line_ends, shape.longest_line) == (0, 0)


@given(st.lists(texts.filter(lambda text: b"--b" not in text), min_size=1, max_size=4))
def test_parts_come_back_and_those_in_seven_bits_stay_as_they_are(bodies: list[bytes]) -> None:
    parts = [UTF8 + EIGHT + b"\r\n" + body + b"\xff" for body in bodies]
    plain = b"Content-Type: text/x; a=b\r\nX-Odd : y\r\n\r\nas = it is \r\n"
    signed = multipart(plain, b"\r\nsig", subtype=b"signed", boundary=b"inner")
    mail = b"MIME-Version: 1.0\r\n" + multipart(plain, *parts, b"", signed, plain)

    converted = in_seven_bits(mail)

    assert converted is not None
    assert converted.isascii()
    assert leaves(converted) == leaves(mail)
    assert converted.count(plain) == 3
    assert signed in converted
    assert converted.startswith(mail[: mail.index(b"--b\r\n") + 5 + len(plain)])
    assert converted.endswith(b"--b-- \r\nepilogue\r\n")


def test_a_body_in_base64_ends_as_its_place_wants() -> None:
    leaf = b"Content-Type: application/x\r\n" + EIGHT + b"\r\n\xff"

    alone = in_seven_bits(b"MIME-Version: 1.0\r\n" + leaf)
    within = in_seven_bits(b"MIME-Version: 1.0\r\n" + multipart(leaf))

    assert alone is not None
    assert within is not None
    assert alone.endswith(b"\r\n\r\n/w==\r\n")
    assert b"\r\n\r\n/w==\r\n--b-- " in within


def test_a_part_without_an_octet_stays_so() -> None:
    empty = b"MIME-Version: 1.0\r\n" + multipart(b"", b"", UTF8 + EIGHT + b"\r\n" + GREETING)

    converted = in_seven_bits(empty)

    assert converted is not None
    assert converted.isascii()
    assert leaves(converted) == leaves(empty)
    assert converted.count(b"--b\r\n\r\n") == 2


def test_only_the_encoding_of_a_header_changes() -> None:
    header = b"Subject: a\r\n folded\r\nMIME-Version: 1.0\r\n%sX-Odd :  y \r\n" + UTF8 + b"\r\n"
    mail = header % b"content-transfer-encoding:\r\n 8BIT\r\n" + GREETING

    converted = in_seven_bits(mail)

    encoding = b"Content-Transfer-Encoding: quoted-printable\r\n"
    assert converted == header % encoding + b"Gr=C3=BC=C3=9Fe\r\n"


def test_what_stands_behind_a_field_with_a_blank_before_its_colon_counts() -> None:
    parts = multipart(UTF8 + EIGHT + b"\r\n" + GREETING)
    mail = b"X-Odd : y\r\nMIME-Version: 1.0\r\n" + parts

    converted = in_seven_bits(mail)

    encoding = b"Content-Transfer-Encoding: quoted-printable\r\n"
    assert converted == mail.replace(EIGHT, encoding).replace(GREETING, b"Gr=C3=BC=C3=9Fe\r\n")
    assert is_signed(b"X-Odd : y\r\nDKIM-Signature: v=1\r\n\r\n")
    assert is_signed(b"DKIM-Signature : v=1\r\n\r\n")


def test_multiparts_and_messages_get_the_encoding_7bit() -> None:
    inner = b"Subject: y\r\nMIME-Version: 1.0\r\n" + UTF8 + EIGHT + b"\r\n" + GREETING
    message = b"Content-Type: message/rfc822\r\n" + EIGHT + b"\r\n" + inner
    mail = b"MIME-Version: 1.0\r\n" + EIGHT + multipart(message)

    converted = in_seven_bits(mail)

    assert converted is not None
    found = [part["content-transfer-encoding"] for part in message_from_bytes(converted).walk()]
    assert found == ["7bit", "7bit", "quoted-printable"]


def test_mail_without_mime_becomes_mail_of_an_unknown_charset() -> None:
    converted = in_seven_bits(b"Subject: x\n\n\xfc\n")

    assert converted is not None
    found = message_from_bytes(converted)
    assert (found["subject"], found["mime-version"]) == ("x", "1.0")
    assert found.get_content_charset() == "unknown-8bit"  # RFC 1428
    assert found.get_payload(decode=True) == b"\xfc\r\n"


def test_mail_without_a_header_is_converted_from_its_first_octet() -> None:
    converted = in_seven_bits(b"\r\n" + GREETING)

    assert converted is not None
    assert leaves(converted) == [("text/plain", GREETING)]


def test_a_message_in_a_message_becomes_a_mime_message_too() -> None:
    outer = b"MIME-Version: 1.0\r\nContent-Type: message/rfc822\r\n\r\n"

    converted = in_seven_bits(outer + b"Subject: x\r\n\r\n" + GREETING)

    assert converted is not None
    _, inner = converted.split(b"\r\n\r\n", 1)
    assert b"MIME-Version: 1.0\r\n" in inner
    assert leaves(converted) == [("text/plain", GREETING)]


def test_a_text_that_would_be_broken_before_a_boundary_becomes_base64() -> None:
    text = b"x" * 73 + b"\xff" + b" --b" * 60
    mail = b"MIME-Version: 1.0\r\n" + multipart(UTF8 + EIGHT + b"\r\n" + text)

    converted = in_seven_bits(mail)

    assert converted is not None
    assert b"base64" in converted
    assert leaves(converted) == leaves(mail)


SIGNATURES = {
    "DKIM": b"DKIM-Signature: v=1\r\n" + UTF8 + b"\r\n" + GREETING,
    "ARC": b"ARC-Seal: i=1\r\n" + UTF8 + b"\r\n" + GREETING,
    "PGP": multipart(UTF8 + b"\r\n" + GREETING, b"\r\nsig", subtype=b"signed"),
    "encrypted": multipart(UTF8 + b"\r\n" + GREETING, subtype=b"encrypted"),
    "S/MIME": b"Content-Type: application/pkcs7-mime\r\n\r\n\xff\r\n",
    "old S/MIME": b"Content-Type: application/x-pkcs7-mime; name=a\r\n\r\n\xff\r\n",
}


@pytest.mark.parametrize("kind", SIGNATURES)
def test_signed_mail_is_not_converted_nor_a_mail_that_holds_it(kind: str) -> None:
    mail = SIGNATURES[kind]
    header = mail[: mail.index(b"\r\n\r\n") + 4]

    assert is_signed(header)
    assert in_seven_bits(b"MIME-Version: 1.0\r\n" + mail) is None
    forwarded = b"Content-Type: message/rfc822\r\n\r\n" + mail
    assert in_seven_bits(b"MIME-Version: 1.0\r\n" + multipart(forwarded, boundary=b"o")) is None


@pytest.mark.parametrize(
    "mail",
    [
        pytest.param(b"Subject: \xff\r\n\r\nx\r\n", id="8 bits in the header"),
        pytest.param(multipart(b"X: \xff\r\n\r\nx"), id="8 bits in a part's header"),
        pytest.param(b"no field\r\n\r\n\xff\r\n", id="no header"),
        pytest.param(b"From a@b now\r\nSubject: x\r\n\r\n\xff\r\n", id="a mailbox's line"),
        pytest.param(b"Subject: x\r\n\xff", id="no end of the header"),
        pytest.param(
            b"Content-Transfer-Encoding: base64\r\n\r\n\xff\r\n", id="declared as encoded"
        ),
        pytest.param(b"Content-Transfer-Encoding: x-uue\r\n\r\n\xff\r\n", id="unknown encoding"),
        pytest.param(EIGHT + EIGHT + b"\r\n\xff\r\n", id="two encodings"),
        pytest.param(UTF8 + multipart(b"\r\n\xff"), id="two types"),
        pytest.param(
            multipart(b"\r\n\xff").replace(b"multipart/", b"(a/b) multipart/"), id="a comment"
        ),
        pytest.param(
            multipart(b"\r\n\xff").replace(b"multipart/", b"multipart /"), id="a blank in the type"
        ),
        pytest.param(b"Content-Type: multipart; boundary=b\r\n\r\n\xff\r\n", id="no subtype"),
        pytest.param(b"Content-Type: multipart/mixed\r\n\r\n\xff\r\n", id="no boundary"),
        pytest.param(multipart(b"\r\nx").replace(b"preamble", b"\xff"), id="preamble"),
        pytest.param(multipart(b"\r\nx").replace(b"epilogue", b"\xff"), id="epilogue"),
        pytest.param(b"Content-Type: message/partial\r\n\r\n\xff\r\n", id="a part of a message"),
        pytest.param(multipart(*[b"\r\nx"] * MAX_PARTS, b"\r\n\xff"), id="too many parts"),
    ],
)
def test_what_would_take_a_guess_is_not_converted(mail: bytes) -> None:
    assert in_seven_bits(mail) is None


@pytest.mark.parametrize(("depth", "is_converted"), [(DEEPEST, True), (DEEPEST + 1, False)])
def test_nesting_is_bounded(depth: int, is_converted: bool) -> None:
    mail = b"\r\n" + GREETING
    for level in range(depth):
        mail = multipart(mail, boundary=b"level%d." % level)

    assert (in_seven_bits(mail) is not None) == is_converted


def test_thousands_of_levels_are_given_up_at_once() -> None:
    level = b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n"
    assert in_seven_bits(b"".join(level % (n, n) for n in range(5000)) + b"\r\n\xff") is None


@given(
    st.lists(
        st.sampled_from([b"--b", b"--b--", b"\r\n", b"\r\n", b"\r", b"\n", b" ", b"\xff", b"a: b"])
        | st.sampled_from([b"Content-Type: multipart/mixed; boundary=b\r\n", UTF8, EIGHT, b"--bb"])
        | st.sampled_from([b"Content-Type: message/rfc822\r\n", b"Content-Type", b";", b'"', b"="])
    ).map(b"".join)
)
def test_whatever_comes_is_converted_to_seven_bits_or_left(mail: bytes) -> None:
    converted = in_seven_bits(mail)

    assert converted is None or converted.isascii()
    if mail.isascii():
        assert converted == with_crlf(mail)


def test_mails_that_a_library_makes_are_converted() -> None:
    message = EmailMessage(policy=SMTP.clone(cte_type="8bit"))
    message["Subject"] = "x"
    message.set_content("Grüße\n", cte="8bit")
    message.add_alternative("<p>Grüße</p>\n", subtype="html", cte="8bit")
    message.add_attachment(b"\xff\0\r\n", maintype="image", subtype="png")
    mail = message.as_bytes()
    assert re.search(rb"[^\x00-\x7f]", mail)

    converted = in_seven_bits(mail)

    assert converted is not None
    assert leaves(converted) == leaves(mail)


texts_of_any_length = st.lists(
    texts | st.sampled_from([b"\xfc" * 150, b"a" * 150, b" " * 150, b"x\r\n" * 50, b"--c\r\n"])
).map(b"".join)


@given(texts_of_any_length, st.sampled_from([b"text/plain", b"image/png", b"message/rfc822"]))
def test_where_a_step_ends_loses_nothing(body: bytes, kind: bytes) -> None:
    plain = b"Content-Type: %s\r\n\r\n" % kind + with_crlf(body + b"\xff")
    mail = b"MIME-Version: 1.0\r\n" + multipart(plain, b"\r\nx", plain, boundary=b"long-boundary")

    converted = in_seven_bits(mail)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seven_bits, "PIECE", 100)
        patch.setattr(seven_bits, "_BASE64_PIECE", 57)
        stepped = in_seven_bits(mail)

    assert (stepped is None) == (converted is None)
    if stepped is not None and converted is not None:
        assert leaves(stepped) == leaves(converted)


@pytest.mark.parametrize("kind", [b"text/plain", b"image/png"])
def test_a_large_mail_is_converted_in_steps_that_encode_little(
    kind: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []

    def counted(honest: Any) -> Any:
        def encode(octets: bytes, **more: Any) -> bytes:
            encoded.append(len(octets))
            return bytes(honest(octets, **more))

        return encode

    for name in ("b2a_qp", "encodebytes"):
        monkeypatch.setattr(seven_bits, name, counted(getattr(seven_bits, name)))
    mail = b"MIME-Version: 1.0\r\nContent-Type: %s\r\n\r\n" % kind + b"\xfc" * (20 * PIECE)

    for steps, _ in enumerate(seven_bits.in_seven_bits(mail), 1):
        assert len(encoded) <= steps

    assert max(encoded) <= PIECE
    assert sum(encoded) >= 20 * PIECE
