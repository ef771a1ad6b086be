"""Codes of errors for those outside: the exit code of a command, and the reply to an SMTP client.

The first row that an error fits decides. A client's mail is refused for good only where it can
never be accepted; any other failure is a transient reply, also one that is permanent for postroad
(refused credentials), because the client keeps the mail until an administrator has mended it.
Source: RFC 5321 4.2.3; RFC 3463 3."""

from typing import NamedTuple

from postroad import errors
from postroad.domain.smtp.replies import Reply

FAILED, USAGE, TRY_AGAIN = 1, 2, 75
"""Exit codes: failed, wrong usage, and sysexits' EX_TEMPFAIL."""

TOO_LARGE = Reply(552, ("5.3.4 the mail is larger than accepted",))
FULL = Reply(452, ("4.3.1 no space left, come again",))
BUSY = Reply(451, ("4.3.2 too many files are open here, come again",))
_INVALID = Reply(554, ("5.6.0 the mail cannot be queued",))
_NOT_NOW = Reply(451, ("4.3.0 not now, come again",))


class Codes(NamedTuple):
    """One row: the exit code and the reply. The texts of replies are public, so they are generic;
    the log has the reason."""

    exit: int
    reply: Reply


_ROWS: tuple[
    tuple[type[errors.PostroadError] | tuple[type[errors.PostroadError], ...], Codes], ...
] = (
    (errors.MailTooLarge, Codes(FAILED, TOO_LARGE)),
    ((errors.InvalidMail, errors.KeyReused), Codes(FAILED, _INVALID)),
    ((errors.InvalidQueueURL, errors.InvalidQueueName), Codes(USAGE, _NOT_NOW)),
    (errors.TooManyOpenFiles, Codes(TRY_AGAIN, BUSY)),
    (errors.StoreFull, Codes(TRY_AGAIN, FULL)),
)


def codes_of(error: Exception) -> Codes:
    """Return the codes of an error. An InvalidMail that an OSError caused is about the copy that
    postroad made of the mail, which could not be read: the client's mail may be in order."""
    if isinstance(error, errors.InvalidMail) and isinstance(error.__cause__, OSError):
        return Codes(FAILED, _NOT_NOW)
    for kinds, codes in _ROWS:
        if isinstance(error, kinds):
            return codes
    is_transient = isinstance(error, errors.PostroadError) and error.transient
    return Codes(TRY_AGAIN if is_transient else FAILED, _NOT_NOW)
