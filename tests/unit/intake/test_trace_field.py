"""The trace field says where a mail came from, and counting them finds loops."""

from datetime import UTC, datetime
from email import message_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.mail.mail import Origin
from postroad.intake.message_buffer import HopCounter, trace_field

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_the_field_names_client_server_protocol_name_and_time() -> None:
    field = trace_field(
        Origin("client.example", "192.0.2.1", "ESMTPS"), "intake.example", "4f2a", NOON
    )

    unfolded = message_from_bytes(field)["Received"].replace("\r\n\t", " ")
    assert unfolded == (
        "from client.example ([192.0.2.1]) by intake.example with ESMTPS id 4f2a; "
        "Sat, 21 Nov 2026 12:00:00 +0000"
    )


def test_the_field_tells_in_a_comment_what_the_connection_is_encrypted_with() -> None:
    origin = Origin("client.example", "192.0.2.1", "ESMTPSA")
    field = trace_field(
        origin, "intake.example", "4f2a", NOON, ("TLSv1.3", "TLS_AES_128_GCM_SHA256")
    )

    assert field.splitlines()[:3] == [
        b"Received: from client.example ([192.0.2.1])",
        b"\t(using TLSv1.3 with cipher TLS_AES_128_GCM_SHA256)",
        b"\tby intake.example with ESMTPSA id 4f2a;",
    ]


def test_an_ipv6_address_is_written_as_a_literal() -> None:
    field = trace_field(Origin("x", "2001:db8::1", "SMTP"), "intake.example", "1", NOON)

    assert b"([IPv6:2001:db8::1])" in field


@pytest.mark.parametrize(
    ("content", "hops"),
    [
        (b"", 0),
        (b"Subject: x\r\n\r\nReceived: in the body\r\n", 0),
        (b"Received: a\r\n\tReceived: folded\r\nRECEIVED: b\r\n\r\nReceived: c\r\n", 2),
        (b"X-Received: a\r\nreceived: b\r\n", 1),
        (b"\r\nReceived: a\r\n", 0),
    ],
)
@given(data=st.data())
def test_fields_are_counted_wherever_chunks_are_cut(
    content: bytes, hops: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    counter = HopCounter()
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        counter.feed(content[start:end])

    assert counter.hops == hops
