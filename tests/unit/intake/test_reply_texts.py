"""Only what will never work is refused for good."""

from uuid import UUID

import pytest

from postroad.errors import (
    BrokerUnavailable,
    CredentialsRefused,
    DeadlineExceeded,
    InvalidMail,
    MailTooLarge,
    QueueClosed,
    StoreFull,
    ViewRefused,
)
from postroad.intake.reply_texts import accepted, reply_for


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MailTooLarge(), "552 5.3.4"),
        (InvalidMail(), "554 5.6.0"),
        (StoreFull(), "452 4.3.1"),
        (BrokerUnavailable(), "451 4.3.0"),
        (DeadlineExceeded(), "451 4.3.0"),
        (CredentialsRefused(), "451 4.3.0"),
        (ViewRefused(), "451 4.3.0"),
        (QueueClosed(), "451 4.3.0"),
        (RuntimeError("unexpected"), "451 4.3.0"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_an_error_becomes_a_reply_without_its_reason(error: Exception, expected: str) -> None:
    reply = reply_for(error)

    assert f"{reply.code} {reply.enhanced}" == expected
    assert str(error) not in str(reply)


def test_our_own_copy_that_cannot_be_read_is_not_the_clients_fault() -> None:
    error = InvalidMail("the content cannot be read: Too many open files")
    error.__cause__ = OSError(24, "Too many open files")

    assert reply_for(error).code == 451


def test_the_reply_that_accepts_names_the_enqueue_id() -> None:
    assert str(accepted(UUID(int=5))) == f"250 2.0.0 queued as {UUID(int=5)}"
