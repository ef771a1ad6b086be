"""What every `Resolver` promises. Subclasses provide the fixture `resolver`, which knows ZONE."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroad.ports.delivery import Resolver
from postroad.routing.answers import Answer, AnswerKind, MxRecord, Question, RecordType, TlsaRecord

ZONE: tuple[tuple[str, str, str], ...] = (
    ("example.org", "MX", "10 mx1.example.org"),
    ("example.org", "MX", "20 mx2.example.org"),
    ("example.org", "A", "192.0.2.1"),
    ("mx1.example.org", "A", "192.0.2.11"),
    ("mx1.example.org", "A", "192.0.2.12"),
    ("mx1.example.org", "AAAA", "2001:db8::11"),
    ("null.example", "MX", "0 ."),
    ("alias.example", "CNAME", "other.example"),
    ("other.example", "CNAME", "example.org"),
    ("nowhere.example", "CNAME", "gone.example"),
    ("_mta-sts.example.org", "TXT", '"v=STSv1\\059 " "id=1\\059"'),
    ("_25._tcp.mx1.example.org", "TLSA", f"3 1 1 {'ab' * 32}"),
    ("loop.example", "CNAME", "pool.example"),
    ("pool.example", "CNAME", "loop.example"),
)
"""Records as (name, type, value)."""

VALIDATED = ("mx1.example.org", "_25._tcp.mx1.example.org", "alias.example", "signed.example")
"""Names that are validated by DNSSEC; `other.example`, to which an alias leads, is not."""

FAILING = "failing.example"
"""A name about which no server answers."""


class ResolverContract:
    async def test_mx_records_come_with_their_preferences(self, resolver: Resolver) -> None:
        answer = await ask(resolver, "example.org", RecordType.MX)

        assert answer.kind is AnswerKind.RECORDS
        assert set(answer.exchanges) == {
            MxRecord(10, "mx1.example.org"),
            MxRecord(20, "mx2.example.org"),
        }
        assert answer.ttl > timedelta(0)

    async def test_several_questions_are_answered_in_their_order(self, resolver: Resolver) -> None:
        gone, mx, failing, mx_again = await resolver.look_up(
            Question("gone.example", RecordType.A),
            Question("null.example", RecordType.MX),
            Question(FAILING, RecordType.A),
            Question("null.example", RecordType.MX),
        )

        assert gone.kind is AnswerKind.NO_NAME
        assert mx.exchanges == mx_again.exchanges == (MxRecord(0, ""),)
        assert failing.is_unavailable
        assert await resolver.look_up() == ()

    async def test_addresses_come_by_family(self, resolver: Resolver) -> None:
        ipv4 = await ask(resolver, "mx1.example.org", RecordType.A)
        ipv6 = await ask(resolver, "mx1.example.org", RecordType.AAAA)

        assert set(ipv4.addresses) == {"192.0.2.11", "192.0.2.12"}
        assert ipv6.addresses == ("2001:db8::11",)

    async def test_the_host_of_a_null_mx_is_empty(self, resolver: Resolver) -> None:
        """Source: RFC 7505 3."""
        answer = await ask(resolver, "null.example", RecordType.MX)

        assert answer.exchanges == (MxRecord(0, ""),)

    @pytest.mark.parametrize("kind", RecordType)
    async def test_a_name_that_does_not_exist_has_no_name(
        self, resolver: Resolver, kind: RecordType
    ) -> None:
        assert (await ask(resolver, "gone.example", kind)).kind is AnswerKind.NO_NAME

    async def test_a_name_without_such_records_has_no_data(self, resolver: Resolver) -> None:
        answer = await ask(resolver, "example.org", RecordType.AAAA)

        assert (answer.kind, answer.addresses) == (AnswerKind.NO_DATA, ())

    async def test_cname_records_are_followed_and_named(self, resolver: Resolver) -> None:
        answer = await ask(resolver, "alias.example", RecordType.A)

        assert answer.addresses == ("192.0.2.1",)
        assert answer.aliases == ("other.example", "example.org")

    async def test_a_cname_to_nowhere_has_no_name(self, resolver: Resolver) -> None:
        """Source: RFC 6604 2."""
        answer = await ask(resolver, "nowhere.example", RecordType.MX)

        assert answer.kind is AnswerKind.NO_NAME

    async def test_the_strings_of_a_text_are_joined(self, resolver: Resolver) -> None:
        answer = await ask(resolver, "_mta-sts.example.org", RecordType.TXT)

        assert answer.texts == ("v=STSv1; id=1;",)
        assert not answer.is_validated

    async def test_tlsa_records_come_as_they_are(self, resolver: Resolver) -> None:
        answer = await ask(resolver, "_25._tcp.mx1.example.org", RecordType.TLSA)

        assert answer.certificates == (TlsaRecord(3, 1, 1, b"\xab" * 32),)
        assert answer.is_validated

    @pytest.mark.parametrize(
        ("name", "is_validated"),
        [("mx1.example.org", True), ("signed.example", True), ("alias.example", False)],
        ids=["records", "no name", "an alias to another zone"],
    )
    async def test_an_answer_is_validated_as_a_whole(
        self, resolver: Resolver, name: str, is_validated: bool
    ) -> None:
        answer = await ask(resolver, name, RecordType.A)

        assert answer.is_validated is is_validated

    @pytest.mark.parametrize("name", ["loop.example", FAILING])
    @pytest.mark.parametrize("kind", RecordType)
    async def test_what_fails_is_unavailable_with_a_reason(
        self, resolver: Resolver, name: str, kind: RecordType
    ) -> None:
        answer = await ask(resolver, name, kind)

        assert answer.kind is AnswerKind.UNAVAILABLE
        assert answer.reason
        assert answer.ttl > timedelta(0), "the same question is not asked at once again"


async def ask(resolver: Resolver, name: str, kind: RecordType) -> Answer:
    (answer,) = await resolver.look_up(Question(name, kind))
    return answer
