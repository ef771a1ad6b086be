"""Each error has one exit code and one reply."""

from __future__ import annotations

import pytest

from postroad import errors
from postroad.domain.error_codes import FAILED, TRY_AGAIN, USAGE, codes_of


def kinds() -> list[type[errors.PostroadError]]:
    """Every error of the public tree, whichever modules with errors of their own are imported."""
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.PostroadError)
    ]


@pytest.mark.parametrize(
    ("error", "exit_code", "reply"),
    [
        (errors.MailTooLarge(), FAILED, 552),
        (errors.InvalidMail(), FAILED, 554),
        (errors.InvalidQueueURL(), USAGE, 451),
        (errors.InvalidQueueName(), USAGE, 451),
        (errors.StoreFull(), TRY_AGAIN, 452),
        (errors.ViewUnavailable(), TRY_AGAIN, 451),
        (errors.CredentialsRefused(), FAILED, 451),
        (RuntimeError("a bug"), FAILED, 451),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_an_error_has_its_codes(error: Exception, exit_code: int, reply: int) -> None:
    assert (codes_of(error).exit, codes_of(error).reply.code) == (exit_code, reply)


def test_a_copy_of_a_mail_that_cannot_be_read_is_no_fault_of_the_client() -> None:
    error = errors.InvalidMail("the content cannot be read")
    error.__cause__ = OSError("input/output error")

    assert (codes_of(error).exit, codes_of(error).reply.code) == (FAILED, 451)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_what_may_work_later_is_never_refused_for_good(kind: type[errors.PostroadError]) -> None:
    codes = codes_of(kind())

    assert (codes.exit == TRY_AGAIN) == kind.transient
    if kind.transient:
        assert codes.reply.code < 500
