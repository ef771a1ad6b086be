"""MTA-STS: records, policies and their time. Source: RFC 8461."""

from datetime import UTC, datetime, timedelta

import pytest

from postroad.errors import InvalidInput
from postroad.routing.securing import KeptPolicy, StsMode, StsPolicy, record_id

POLICY = (
    "version: STSv1\r\nmode: enforce\r\nmx: Mail.example.com\r\nmx: *.example.net.\r\n"
    "max_age: 604800\r\n"
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["v=STSv1; id=1;"], "1"),
        (["v=STSv1; id=1"], "1"),
        (["v=STSv1;id=a1 ; later=x;"], "a1"),
        (["v=spf1 -all", "v=STSv1; id=2;"], "2"),
        (["v=STSv1; id=1;", "v=STSv1; id=1;"], None),
        (["v=STSv1; id=;"], None),
        (["v=STSv1; id=a-b;"], None),
        (["v=STSv1; id=" + "1" * 33], None),
        (["v=STSv2; id=1;"], None),
        (["V=STSv1; id=1;"], None),
        ([" v=STSv1; id=1;"], None),
        ([], None),
    ],
)
def test_the_id_of_a_record(texts: list[str], expected: str | None) -> None:
    assert record_id(texts) == expected


def test_a_policy_is_read() -> None:
    policy = StsPolicy.parse(POLICY)

    expected = ("mail.example.com", "*.example.net")
    assert policy == StsPolicy(StsMode.ENFORCE, expected, timedelta(days=7))
    assert StsPolicy.parse(POLICY.replace("\r\n", "\n") + "later: x") == policy
    assert StsPolicy.parse(POLICY + "mode: none\r\n") == policy
    assert StsPolicy.parse(POLICY.replace("604800", "99999999")).max_age.days == 365
    assert StsPolicy.parse(POLICY.replace("604800", "0")).max_age == timedelta(minutes=5)
    assert StsPolicy.parse("version: STSv1\nmode: none\nmax_age: 1").mode is StsMode.NONE


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("STSv1", "STSv2"),
        ("version: STSv1\r\n", ""),
        ("mode: enforce", "mode: maybe"),
        ("mode: enforce\r\n", ""),
        ("max_age: 604800\r\n", ""),
        ("604800", "-1"),
        ("604800", "x"),
        ("Mail.example.com", "mail.*.com"),
        ("Mail.example.com", "mail example.com"),
        ("Mail.example.com", "*"),
        ("mx: Mail.example.com\r\nmx: *.example.net.\r\n", ""),
        ("mode: enforce", "<html>"),
    ],
)
def test_what_is_no_policy_is_refused(old: str, new: str) -> None:
    assert old in POLICY
    with pytest.raises(InvalidInput):
        StsPolicy.parse(POLICY.replace(old, new))


@pytest.mark.parametrize(
    ("host", "is_permitted"),
    [
        ("mail.example.com", True),
        ("a.mail.example.com", False),
        ("a.example.net", True),
        ("a.b.example.net", False),
        ("example.net", False),
        ("mail.example.org", False),
    ],
)
def test_a_wildcard_stands_for_one_label(host: str, *, is_permitted: bool) -> None:
    assert StsPolicy.parse(POLICY).permits(host) is is_permitted


@pytest.mark.parametrize(
    ("age", "record", "is_over", "is_fetched"),
    [
        (timedelta(hours=23), "1", False, False),
        (timedelta(hours=23), "2", False, True),
        (timedelta(hours=23), None, False, False),
        (timedelta(hours=25), "1", False, True),
        (timedelta(hours=25), None, False, False),
        (timedelta(days=7), "1", True, True),
        (timedelta(hours=-1), "1", False, False),
        (timedelta(days=-2), "1", True, False),
    ],
)
def test_how_long_a_policy_holds(
    age: timedelta, record: str | None, *, is_over: bool, is_fetched: bool
) -> None:
    kept = KeptPolicy("1", StsPolicy.parse(POLICY), NOW - age)

    assert kept.is_over(NOW) is is_over
    assert kept.is_to_be_fetched(record, NOW) is is_fetched
