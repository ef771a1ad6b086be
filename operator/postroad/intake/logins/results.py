"""Results of logins: users, and the replies that end a login without success. No library of logins
is imported here, so that an intake without logins needs none. Source: RFC 4954 4, 6."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from postroad.domain.smtp.replies import Reply
from postroad.errors import InvalidInput
from postroad.intake_settings.user_file import UserRecord

Ask = Callable[[bytes], Awaitable[bytes]]
"""Sends a challenge, and returns the client's response. Raises: LoginFailed."""


class LoggedInUser(NamedTuple):
    """A client that has logged in."""

    name: str
    tenant: str | None = None


class LoginClient(NamedTuple):
    """A client that logs in: its address, and the certificate to which SCRAM-SHA-256-PLUS binds a
    login."""

    address: str
    channel_binding: str | None = None


@dataclass(frozen=True, slots=True)
class KnownUsers:
    """The users of a file, by name, and its secret."""

    users: Mapping[str, UserRecord] = field(default_factory=dict)
    secret: bytes = b""


WRONG = Reply(535, ("5.7.8 wrong user name or password",))
"""Also for a user that does not exist, and for one that may not log in from its address: the reply
shows no more."""

UNAVAILABLE = Reply(454, ("4.7.0 logins cannot be checked now, come again",))
COME_AGAIN = Reply(454, ("4.7.0 too many logins from your address, come again",))
CANCELLED = Reply(501, ("5.7.0 login cancelled",))
MALFORMED = Reply(501, ("5.5.2 malformed response",))
TOO_LONG = Reply(500, ("5.5.6 response too long",))
BINDING_WRONG = Reply(535, ("5.7.8 the channel binding is wrong",))
"""The client sees another certificate, or did not see SCRAM-SHA-256-PLUS in the reply to EHLO: a
server in between may read what both send. Source: RFC 5802 6."""


class LoginFailed(InvalidInput):
    """A login has not succeeded. `reply` is the answer to the client."""

    def __init__(self, reply: Reply = WRONG) -> None:
        super().__init__(str(reply))
        self.reply = reply


class UsersUnavailable(LoginFailed):
    """The place that knows the users does not answer."""

    transient = True

    def __init__(self, reason: str) -> None:
        super().__init__(UNAVAILABLE)
        self.reason = reason
