"""Canonical forms are those of dkimpy, however the octets come."""

from __future__ import annotations

import hashlib
import time

import pytest
from dkim.canonicalization import Relaxed, Simple
from hypothesis import given
from hypothesis import strategies as st

from postroad.signing.signatures import BodyDigest, Canonical, canonical_field

PEERS = {Canonical.RELAXED: Relaxed, Canonical.SIMPLE: Simple}
FORMS = sorted(PEERS)
PIECES = st.sampled_from([b" ", b"\t", b"\r\n", b"x", b".", b"  ", b"\t \r\n", b"\xff", b"\x0b"])


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data(), pieces=st.lists(PIECES, max_size=40))
def test_a_body_has_the_digest_of_its_form_however_it_is_cut(
    data: st.DataObject, form: Canonical, pieces: list[bytes]
) -> None:
    body = b"".join(pieces)
    if body and not body.endswith(b"\r\n"):
        body += b"\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    digest = BodyDigest(form)

    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        digest.feed(body[start:end])

    assert digest.end() == hashlib.sha256(PEERS[form].canonicalize_body(body)).digest()


@pytest.mark.parametrize("form", FORMS)
@given(
    name=st.sampled_from([b"Subject", b"X-a", b"FROM", b"to \t"]),
    value=st.lists(st.sampled_from([b" ", b"\t", b"a", b":", b"\r\n ", b"\r\n\t", b"\xff"])),
)
def test_a_field_has_its_form(form: Canonical, name: bytes, value: list[bytes]) -> None:
    field = name + b":" + b"".join(value)
    ((peer_name, peer_value),) = PEERS[form].canonicalize_headers([(name, b"".join(value))])
    expected = (peer_name + b":" + peer_value).removesuffix(b"\r\n")

    assert canonical_field(form, field) == expected


def test_a_body_of_blanks_alone_costs_neither_memory_nor_time() -> None:
    chunk, digest = (b" \t" * 400 + b"\r\n") * 80, BodyDigest(Canonical.RELAXED)
    begun = time.process_time()

    for _ in range(160):  # 10 MB, which would take minutes if all of it were held back as text
        digest.feed(chunk)

    assert digest.end() == hashlib.sha256(b"").digest()
    assert time.process_time() - begun < 5
