"""Reverse-paths that name the recipient, so that a report that comes back tells whom it is about.

The form is that of Postfix with its usual delimiters, `+` and `=`.
Source: Bernstein, Variable Envelope Return Paths; Postfix documentation, VERP_README; RFC 5321
4.1.2, 4.5.3.1; ADR 0071."""

import re

from postroad.domain.mail.seven_bits import ascii_address

MAX_LOCAL_PART, MAX_PATH = 64, 254
"""Octets; a path has 256 with its angle brackets. Source: RFC 5321 4.5.3.1.1, 4.5.3.1.3."""

_ATOM = r"[^\s\"()<>\[\]\\,;:@.\x00-\x20\x7f]+"
_DOT_STRING = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")


def return_path(sender: str, recipient: str) -> str | None:
    """Return the reverse-path of a mail from a sender to one recipient; None: it would be too long,
    or one of the two has quotes or an address literal that cannot stand there.

    >>> return_path("bounces@list.example", "user@example.net")
    'bounces+user=example.net@list.example'
    """
    local, at, domain = sender.rpartition("@")
    user, _, host = ascii_address(recipient).rpartition("@")
    named = f"{user}={host}" if user else host  # postmaster has no domain
    extended = f"{local}+{named}"
    path = f"{extended}{at}{domain}"
    if not (local and _DOT_STRING.fullmatch(extended)):
        return None
    if len(extended.encode()) > MAX_LOCAL_PART or len(path.encode()) > MAX_PATH:
        return None
    return path
