"""What a rebuild concludes from the records of one mail that the old log still has."""

from __future__ import annotations

import pytest

from contract.queue_harness import plain_mail
from postroad.embedded.log.envelopes import EnvelopeRecord
from postroad.embedded.log.records import DeliveryKind, DeliveryRecord
from postroad.embedded.offline_tools.log_salvage import MailHistory

MAIL_ID = bytes(15) + b"m"
LAST = EnvelopeRecord(MAIL_ID, bytes(16), 7, 3, plain_mail().envelope, (5,), 1, 1, 5)
FAILED_EARLIER = LAST._replace(failures={9: ("c@example.net", "550 no")})


def delivery(kind: DeliveryKind, entry_number: int = 3, number: int = 5) -> DeliveryRecord:
    return DeliveryRecord(MAIL_ID, entry_number, kind, (number,), "text")


DELIVERED = delivery(DeliveryKind.DELIVERED)


@pytest.mark.parametrize(
    ("history", "is_over"),
    [
        (MailHistory(), False),
        (MailHistory(has_ended=True), True),
        (MailHistory(LAST), False),
        (MailHistory(LAST, has_ended=True), True),
        (MailHistory(LAST, deliveries=[DELIVERED]), True),
        (MailHistory(LAST, deliveries=[delivery(DeliveryKind.DELIVERED, 4)]), True),
        (MailHistory(LAST, deliveries=[delivery(DeliveryKind.DELIVERED, 2)]), False),
        (MailHistory(LAST, deliveries=[delivery(DeliveryKind.DELIVERED, 3, 6)]), False),
        (MailHistory(LAST, deliveries=[delivery(DeliveryKind.FAILED)]), False),
        (MailHistory(LAST._replace(dead=True), deliveries=[DELIVERED]), False),
        (MailHistory(FAILED_EARLIER, deliveries=[DELIVERED]), False),
    ],
)
def test_a_mail_is_over_when_the_records_prove_it(history: MailHistory, is_over: bool) -> None:
    assert history.is_over == is_over


@pytest.mark.parametrize(
    ("last", "hold", "held"),
    [
        (None, (0, True), True),
        (LAST, (3, True), True),
        (LAST, (2, True), False),
        (LAST._replace(held=True), (2, False), True),
        (LAST._replace(held=True), (3, False), False),
        (LAST._replace(held=True), (4, False), False),
    ],
)
def test_the_later_record_decides_whether_a_mail_is_held(
    last: EnvelopeRecord | None, hold: tuple[int, bool], held: bool
) -> None:
    assert MailHistory(last, last_hold=hold).held == held


@pytest.mark.parametrize(
    ("started", "is_garbage", "seems_over"),
    [(2, True, True), (3, True, False), (4, True, False), (2, False, False)],
)
def test_an_envelope_that_is_garbage_without_its_start_seems_over(
    started: int, is_garbage: bool, seems_over: bool
) -> None:
    assert MailHistory(LAST, is_garbage, started).seems_over == seems_over
    assert not MailHistory(None, is_garbage, started).seems_over
