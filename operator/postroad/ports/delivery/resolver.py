"""What routing needs of DNS."""

from __future__ import annotations

from typing import Protocol

from postroad.routing.answers import Answer, Question


class Resolver(Protocol):
    """Looks up absolute names: no search domain is ever appended. Safe to use concurrently."""

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return what DNS answers to each question, which are asked together; CNAME records are
        followed.

        Never raises for what a server does or leaves undone. A name or a record is reported as
        missing only where a server that knows has answered so; a failure (SERVFAIL, REFUSED), a
        referral, an answer that cannot be read or none in time are `unavailable`.
        Of very many records the preferred ones are returned, the same ones each time.
        `ttl` is the shortest of the records that led to the answer; of a negative answer it is what
        its SOA record allows, and zero without one.
        The strings of a TXT record are joined. `is_validated` stands only where a name server on
        this machine calls all of the answer authentic: elsewhere its flag could be forged.
        Source: RFC 1034 3.6.2, 4.3.1, 5.3; RFC 2181 5, 8; RFC 2308 2, 5; RFC 6840 5.8.
        """
        ...
