"""Replies of SMTP as problems of requests of HTTP."""

from postroad.domain.error_codes import TOO_LARGE
from postroad.domain.smtp.replies import Reply
from postroad.intake.clients import TOO_MANY_MAILS
from postroad.intake.dialogue import WRONG_SENDER
from postroad.intake.reply_texts import LARGE_HEADER
from postroad.intake.submission import TOO_MANY_OF_USER
from postroad.intake.submitted_header import WRONG_AUTHOR
from postroad.problems import Problem

_STATUSES = {
    TOO_LARGE: 413,
    LARGE_HEADER: 413,
    WRONG_AUTHOR: 403,
    WRONG_SENDER: 403,
    TOO_MANY_OF_USER: 429,
    TOO_MANY_MAILS: 429,
}


def problem_of(reply: Reply) -> Problem:
    """Return the problem for which SMTP has this reply: 422 and 503 where no other status says
    more."""
    status = _STATUSES.get(reply) or (422 if reply.is_permanent else 503)
    return Problem(status, reply.lines[0].partition(" ")[2])
