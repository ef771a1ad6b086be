"""Certificates against TLSA records. Source: RFC 7671; RFC 7672 3."""

from datetime import timedelta

import pytest

from postroad.routing.answers import TlsaRecord
from postroad.smtp.client.dane import CertificateRefused, verify
from support.issuing import DAY, NOW, Issued, issue

NAME = "mx.example"
ROOT = issue("root", is_authority=True)
MIDDLE = issue("middle", ROOT, is_authority=True)
OWN = issue(NAME, MIDDLE)
CHAIN = (OWN, MIDDLE, ROOT)


def is_accepted(shown: tuple[Issued, ...], *records: TlsaRecord, name: str = NAME) -> bool:
    try:
        verify([each.der for each in shown], name, records, NOW)
    except CertificateRefused:
        return False
    return True


@pytest.mark.parametrize("matching", [0, 1, 2])
@pytest.mark.parametrize("selector", [0, 1])
@pytest.mark.parametrize(("usage", "of"), [(3, OWN), (2, MIDDLE), (2, ROOT)])
def test_each_form_of_a_record_is_compared(
    usage: int, of: Issued, selector: int, matching: int
) -> None:
    record = of.record(usage, selector, matching)
    other = issue("root", is_authority=True).record(usage, selector, matching)

    assert is_accepted(CHAIN, record)
    assert is_accepted(CHAIN, other, record)
    assert not is_accepted(CHAIN, other)


def test_neither_name_nor_time_counts_for_the_servers_own_certificate() -> None:
    """Source: RFC 7672 3.1.1."""
    old = issue("another.example", end=NOW - 10 * DAY)

    assert is_accepted((old,), old.record(3))
    assert not is_accepted((), old.record(3))


def test_a_record_of_an_own_certificate_is_none_of_an_authority() -> None:
    assert not is_accepted(CHAIN, OWN.record(2))
    assert not is_accepted(CHAIN, ROOT.record(3))


def test_name_and_time_count_behind_an_authority() -> None:
    """Source: RFC 7672 3.1.2."""
    late = issue(NAME, ROOT, end=NOW - timedelta(hours=1))

    assert not is_accepted(CHAIN, ROOT.record(2), name="other.example")
    assert not is_accepted((late, ROOT), ROOT.record(2))


def test_an_authority_that_is_not_shown_may_stand_in_the_record() -> None:
    assert is_accepted((OWN, MIDDLE), ROOT.record(2, 0, 0))
    assert not is_accepted((OWN, MIDDLE), ROOT.record(2, 0, 1))


def test_a_shown_authority_that_signed_nothing_vouches_for_nothing() -> None:
    forged = issue(NAME, issue("middle", is_authority=True))

    assert not is_accepted((forged, MIDDLE, ROOT), ROOT.record(2))


def test_a_certificate_of_a_server_signs_no_other() -> None:
    customer = issue("customer.example", ROOT)
    forged = issue(NAME, customer)

    assert not is_accepted((forged, customer, ROOT), ROOT.record(2))


def test_an_authority_signs_no_authority_beyond_its_bound() -> None:
    bound = issue("bound", ROOT, is_authority=True, path_length=0)
    below = issue("below", bound, is_authority=True)
    forged = issue(NAME, below)

    assert is_accepted((issue(NAME, bound), bound, ROOT), ROOT.record(2))
    assert not is_accepted((forged, below, bound, ROOT), ROOT.record(2))


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(CertificateRefused):
        verify([b"no certificate"], NAME, [ROOT.record(2)], NOW)
    assert not is_accepted((OWN, MIDDLE), TlsaRecord(2, 0, 0, b"no certificate"))


@pytest.mark.parametrize("record", [ROOT.record(2), ROOT.record(2, 0, 0)])
def test_a_record_that_is_no_certificate_spoils_no_other(record: TlsaRecord) -> None:
    """Source: RFC 7671 10.3."""
    assert is_accepted(CHAIN, TlsaRecord(2, 0, 0, b"no certificate"), record)
