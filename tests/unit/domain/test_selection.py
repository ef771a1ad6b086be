from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroad import Selector
from postroad.domain.mail.mail import Envelope
from postroad.domain.queues.entries import Entry, EntryKey
from postroad.errors import InvalidInput

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENQUEUE_ID = UUID("01935b8c-9a00-7abc-8123-456789abcdef")
ENTRY = Entry(
    key=EntryKey(NOW, 0, ENQUEUE_ID),
    mail_id=ENQUEUE_ID,
    envelope=Envelope(
        "a@example.org", ("b@Example.net", "c@example.com"), "name1", {"tenant": "t1"}
    ),
    blob_key="k",
    size_bytes=10,
    accepted_at=NOW - timedelta(hours=2),
    enqueued_at=NOW,
)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        pytest.param(Selector.all(), True, id="all"),
        pytest.param(Selector(), False, id="nothing said"),
        pytest.param(Selector(enqueue_id=ENQUEUE_ID), True, id="id"),
        pytest.param(Selector(enqueue_id=UUID(int=1)), False, id="another id"),
        pytest.param(Selector(name="name1"), True, id="name"),
        pytest.param(Selector(name="name"), False, id="part of the name"),
        pytest.param(Selector(sender="a@example.org"), True, id="sender"),
        pytest.param(Selector(sender=""), False, id="null sender"),
        pytest.param(Selector(sender="b@Example.net"), False, id="a recipient is not the sender"),
        pytest.param(Selector(recipient="c@example.com"), True, id="second recipient"),
        pytest.param(Selector(recipient="c@example.co"), False, id="recipient, exactly"),
        pytest.param(Selector(domain="EXAMPLE.net"), True, id="domain, in any case"),
        pytest.param(Selector(domain="ple.net"), False, id="domain, exactly"),
        pytest.param(Selector(domains=frozenset({"example.net", "a"})), True, id="domains"),
        pytest.param(Selector(domains=frozenset({"a", "b"})), False, id="other domains"),
        pytest.param(Selector(domains=frozenset()), False, id="no domain"),
        pytest.param(Selector(older_than=timedelta(hours=1)), True, id="older"),
        pytest.param(Selector(older_than=timedelta(hours=2)), False, id="exactly as old"),
        pytest.param(Selector(attribute=("tenant", "t1")), True, id="attribute"),
        pytest.param(Selector(attribute=("tenant", "t2")), False, id="attribute's value"),
        pytest.param(Selector(name="name1", sender="x@example.org"), False, id="and"),
    ],
)
def test_a_selector_matches_exactly_what_it_names(selector: Selector, selected: bool) -> None:
    assert selector.matches(ENTRY, NOW) is selected


def test_the_null_reverse_path_is_selected_by_an_empty_sender() -> None:
    null = replace(ENTRY, envelope=replace(ENTRY.envelope, sender=None))

    assert Selector(sender="").matches(null, NOW)


@pytest.mark.parametrize(
    ("field", "value", "form"),
    [
        ("sender", 3, "a string, not int"),
        ("recipient", ["b@example.net"], "a string, not list"),
        ("domain", b"example.net", "a string, not bytes"),
        ("older_than", 5, "a timedelta, not int"),
        ("enqueue_id", "x", "a UUID, not str"),
        ("domains", "example.net", "a frozenset of strings, not str"),
        ("attribute", "tenant", "a pair of strings, not str"),
        ("attribute", ("tenant",), "a pair of strings"),
        ("attribute", ("tenant", 1), "a pair of strings"),
    ],
)
def test_a_value_of_another_type_is_refused(field: str, value: Any, form: str) -> None:
    """It would match nothing, or end an operation that has begun."""
    with pytest.raises(InvalidInput, match=f"a selector's {field} is {form}"):
        Selector(**{field: value})


def test_a_moment_without_a_zone_is_refused() -> None:
    """It cannot be compared, which would end an operation at its first mail."""
    with pytest.raises(InvalidInput, match="accepted_before has no zone"):
        Selector(accepted_before=NOW.replace(tzinfo=None))


def test_a_selector_that_says_nothing_has_no_purpose() -> None:
    with pytest.raises(InvalidInput, match=r"Selector\.all"):
        Selector().require_purpose()
