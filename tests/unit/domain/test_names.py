from datetime import UTC, datetime

import pytest

from postroad.domain.queues.names import QueueName, key_of_bytes, mail_of_bytes
from postroad.domain.values.identifiers import id_at
from postroad.errors import InvalidQueueName


@pytest.mark.parametrize(
    "text",
    ["", "outgoing", ".", "mail.", ".outgoing", "Mail.outgoing", "mail.out going", "mail.-out",
     "mail.out.going", "mail." + "x" * 64, "mail.out_going", "mail.*"],
)  # fmt: skip
def test_what_is_not_two_dns_labels_is_refused(text: str) -> None:
    with pytest.raises(InvalidQueueName) as caught:
        QueueName.parse(text)

    assert repr(text) in str(caught.value)


def test_every_object_of_a_queue_carries_its_name() -> None:
    queue = QueueName.parse("mail.outgoing")

    assert queue.exchange == "postroad.mail.outgoing"
    assert queue.work_queue == "postroad.mail.outgoing.work"
    assert queue.dead_queue == "postroad.mail.outgoing.dead"
    assert queue.bucket("postroad-") == "postroad-mail-outgoing"


def test_long_names_that_share_their_first_characters_get_buckets_of_their_own() -> None:
    one, other = (QueueName("n" * 40, "q" * 40 + end) for end in ("a", "b"))

    buckets = {one.bucket("postroad-"), other.bucket("postroad-")}

    assert len(buckets) == 2
    assert all(len(bucket) <= 63 for bucket in buckets)


def test_a_name_as_long_as_a_bucket_may_be_is_not_cut() -> None:
    one, other = QueueName("n" * 20, "q" * 33), QueueName("n" * 20, "q" * 34)

    assert one.bucket("postroad-") == f"postroad-{'n' * 20}-{'q' * 33}"
    assert len(one.bucket("postroad-")) == len(other.bucket("postroad-")) == 63


def test_bucket_of_a_long_name_is_that_of_every_release() -> None:
    queue = QueueName("n" * 20, "q" * 40)

    assert (
        queue.bucket("postroad-")
        == "postroad-nnnnnnnnnnnnnnnnnnnn-qqqqqqqqqqqqqqqqqqqq-91e3fd00cb09"
    )


def test_key_of_bytes_names_its_mail_and_the_day_it_was_accepted() -> None:
    queue, accepted_at = QueueName("mail", "outgoing"), datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
    mail_id = id_at(accepted_at, 1, 2)

    key = key_of_bytes(queue, accepted_at, mail_id)

    assert key == f"mail.outgoing/2026/03/04/{mail_id}"
    assert mail_of_bytes(queue, key) == mail_id
    for other in (
        f"mail.outgoing2/2026/03/04/{mail_id}",
        f"mail.outgoing/2026/03/04/{mail_id}.part",
        f"mail.outgoing/{mail_id}",
        "mail.outgoing/2026/03/04/00000000-0000-4000-8000-000000000000",
        "",
    ):
        assert mail_of_bytes(queue, other) is None
