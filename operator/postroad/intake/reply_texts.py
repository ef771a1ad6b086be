"""The replies to a mail. Their texts are generic; the reason is in the log.

Only a mail that can never be accepted gets a permanent reply. Any other failure of this side gets a
transient one, also one that does not pass by itself (refused credentials), because the client keeps
the mail until the administrator has repaired it."""

from uuid import UUID

from postroad.domain.error_codes import FULL as FULL
from postroad.domain.error_codes import TOO_LARGE as TOO_LARGE
from postroad.domain.error_codes import codes_of
from postroad.domain.smtp.replies import Reply

BARE_LINE_ENDS = Reply(554, ("5.6.0 the mail holds a bare CR or LF",))
NUL_OCTETS = Reply(554, ("5.6.0 the mail holds a NUL octet",))
LARGE_HEADER = Reply(552, ("5.3.4 the header is larger than accepted",))
MALFORMED_HEADER = Reply(554, ("5.6.0 the header has a line that belongs to no field",))
LONG_LINE = Reply(550, ("5.6.0 the mail holds a line of more than 998 octets",))
LOOP = Reply(554, ("5.4.6 too many hops: the mail goes round in circles",))
CLOSING = Reply(421, ("4.3.2 closing, come again",))
IDLE = Reply(421, ("4.4.2 idle for too long",))
TOO_SLOW = Reply(421, ("4.7.0 the mail comes too slowly",))
TOO_LONG = Reply(421, ("4.7.0 this session is too long, come again",))
NO_RELAYING = Reply(550, ("5.7.1 relaying denied: no mail is accepted from your address",))
"""Source: RFC 3463 3.8 (delivery not authorised); RFC 5321 4.2.3 (550, for policy reasons)."""

UNVERIFIED = Reply(450, ("4.1.1 the recipient cannot be verified now, come again",))
LINE_TOO_LONG = Reply(500, ("5.5.2 line too long",))


def accepted(enqueue_id: UUID | str) -> Reply:
    """Return the reply by which postroad takes responsibility for the mail (RFC 5321 4.2.5)."""
    return Reply(250, (f"2.0.0 queued as {enqueue_id}",))


def reply_for(error: Exception) -> Reply:
    return codes_of(error).reply
