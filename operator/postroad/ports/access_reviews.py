"""Reviews of tokens and of rights, as an API server of Kubernetes makes them.

Source: Kubernetes documentation (TokenReview; SubjectAccessReview)."""

from dataclasses import dataclass
from typing import Protocol

QUEUE_GROUP = "postroad.dev"
"""API group of the resources that rights are about."""


@dataclass(frozen=True, slots=True)
class ReviewedUser:
    """A user, as the API server knows the bearer of a token. `extra`: what its authenticators add,
    and its authorizers may read."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ReviewedRight:
    """A verb on a resource, such as `mailqueues/mails`, in a namespace; with a `name`, on the one
    object of that name."""

    verb: str
    resource: str
    namespace: str
    name: str = ""


class AccessReviews(Protocol):
    """An API server that reviews tokens and rights of others. Every method may raise
    KubernetesUnavailable, and KubernetesRefused where this process may not ask. No error has the
    token."""

    async def user_of(self, token: str, audience: str) -> ReviewedUser | None:
        """Return the bearer of a token for this audience, or for the API server itself; None for a
        token that is over, revoked, for another audience, or none."""

    async def allows(self, user: ReviewedUser, right: ReviewedRight) -> bool:
        """Return whether a user has a right now."""
