"""What routing needs of MTA-STS."""

from __future__ import annotations

from typing import Protocol

from postroad.routing.sts import DomainPolicy


class StsPolicies(Protocol):
    """Finds the policies of domains. Safe to use concurrently."""

    async def find(self, domain: str) -> DomainPolicy:
        """Return the policy that holds for mail to a domain (in A-labels, lower case).

        Never raises for what a server does: a policy that cannot be fetched is none, and one that
        was fetched before holds until it is over, whatever DNS and the web server have meanwhile.
        Source: RFC 8461 3.1, 5.1.
        """
        ...
