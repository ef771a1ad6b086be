"""What is kept of an attempt: counts that add up to its recipients, few of them, no address."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from postroad.domain.delivery.attempts import MAX_COUNTS, AttemptOutcomes, OutcomeCount
from postroad.domain.mail.mail import Outcome, OutcomeKind
from postroad.domain.smtp.bounces import BounceClass

DELIVERED, FAILED, DEFERRED = OutcomeKind.DELIVERED, OutcomeKind.FAILED, OutcomeKind.DEFERRED


def test_outcomes_are_counted_by_domain_site_and_reason() -> None:
    heard = AttemptOutcomes.of(
        {
            "a@Example.net": Outcome(DELIVERED, "250 2.0.0 queued as 4XyZ", "mx.example.net"),
            "b@example.net": Outcome(FAILED, "550 5.1.1 <b@example.net> unknown", "mx.example.net"),
            "c@example.net": Outcome(FAILED, "550 5.1.1 <c@example.net> unknown", "mx.example.net"),
            "d@example.org": Outcome.deferred("451 4.4.2 the connection was lost"),
        },
        1.5,
    )

    site, words = "mx.example.net", "<address> unknown"
    assert heard == AttemptOutcomes(
        (
            OutcomeCount("example.net", site, FAILED, 550, BounceClass.NO_MAILBOX, words, 2),
            OutcomeCount("example.net", site, DELIVERED, 250, None, "", 1),
            OutcomeCount(
                "example.org", "", DEFERRED, 451, BounceClass.UNREACHABLE, "the connection was lost"
            ),
        ),
        1.5,
    )
    assert heard.reasons == ["no-mailbox", "unreachable"]


def test_one_outcome_is_one_count() -> None:
    heard = AttemptOutcomes.of({"b@example.net": Outcome(DELIVERED, "250 ok", "mx")}, 0.0)

    assert heard.counts == (OutcomeCount("example.net", "mx", DELIVERED, 250, None, "", 1),)
    assert heard.reasons == []


def test_a_sender_that_a_reply_quotes_is_masked() -> None:
    refused = {"b@example.net": Outcome.failed("550 5.7.1 jdoe may not send")}

    heard = AttemptOutcomes.of(refused, 0.0, "jdoe@example.org")

    assert heard.counts[0].words == "<address> may not send"


DOMAINS = st.integers(0, 50).map("{}.example".format)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(OutcomeKind),
    st.sampled_from(("250 ok", "550 5.1.1 x", "451 later", "554 5.7.1 spam")),
    st.sampled_from(("", "mx1.example", "mx2.example")),
)


@given(st.lists(st.tuples(DOMAINS, OUTCOMES), min_size=1, max_size=120))
def test_counts_add_up_and_are_few(heard: list[tuple[str, Outcome]]) -> None:
    outcomes = {f"{number}@{domain}": each for number, (domain, each) in enumerate(heard)}

    counts = AttemptOutcomes.of(outcomes, 0.0).counts

    found: Counter[OutcomeKind] = Counter()
    for each in counts:
        found[each.kind] += each.count
    assert found == Counter(each.kind for each in outcomes.values())
    assert len(counts) <= MAX_COUNTS + len(OutcomeKind)
    kept, rest = counts[:MAX_COUNTS], counts[MAX_COUNTS:]
    assert [each.count for each in kept] == sorted((each.count for each in kept), reverse=True)
    assert all((each.domain, each.site, each.code, each.words) == ("", "", 0, "") for each in rest)
    assert len({each.kind for each in rest}) == len(rest)
    assert AttemptOutcomes.of(dict(reversed(outcomes.items())), 0.0).counts == counts
