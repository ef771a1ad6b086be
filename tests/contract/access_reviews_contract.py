"""The contract of reviews of tokens and rights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pytest

from postroad.ports.access_reviews import AccessReviews, ReviewedRight

AUDIENCE = "postroad.dev/consoles/mail/main"


class AccessReviewsContract(ABC):
    """For adapters. `namespace`: where users get rights."""

    @abstractmethod
    @pytest.fixture
    async def reviews(self) -> AccessReviews: ...

    @abstractmethod
    @pytest.fixture
    async def namespace(self) -> str: ...

    @abstractmethod
    async def give(
        self, user: str, verb: str, resource: str, *, name: str = "", audience: str = AUDIENCE
    ) -> str:
        """Give a user a right in the namespace, with `name` to one object; return a token for an
        audience, or without one for the API server."""

    @abstractmethod
    async def revoke(self, user: str) -> None:
        """Let the user's tokens be over."""

    async def test_bearers_of_tokens_are_known_until_these_are_over(
        self, reviews: AccessReviews, namespace: str
    ) -> None:
        token = await self.give("alice", "get", "mailqueues")
        found = await reviews.user_of(token, AUDIENCE)
        assert found
        assert found.name.endswith("alice")
        assert await reviews.user_of(token, f"{AUDIENCE}-2") is None
        assert await reviews.user_of(f"{token}x", AUDIENCE) is None
        await self.revoke("alice")
        assert await reviews.user_of(token, AUDIENCE) is None

    async def test_a_token_for_the_api_server_is_good_for_every_console(
        self, reviews: AccessReviews, namespace: str
    ) -> None:
        token = await self.give("bob", "get", "mailqueues", audience="")
        for audience in (AUDIENCE, f"{AUDIENCE}-2"):
            found = await reviews.user_of(token, audience)
            assert found
            assert found.name.endswith("bob")

    async def test_a_right_is_one_of_its_verb_resource_and_namespace(
        self, reviews: AccessReviews, namespace: str
    ) -> None:
        user = await reviews.user_of(await self.give("carol", "get", "mailqueues/mails"), AUDIENCE)
        assert user
        assert await reviews.allows(user, ReviewedRight("get", "mailqueues/mails", namespace))
        for other in (
            ReviewedRight("list", "mailqueues/mails", namespace),
            ReviewedRight("get", "mailqueues/content", namespace),
            ReviewedRight("get", "mailqueues", namespace),
            ReviewedRight("get", "mailqueues/mails", "elsewhere"),
            ReviewedRight("get", "mailqueues/mails", ""),
        ):
            assert not await reviews.allows(user, other), other

    async def test_a_right_to_one_name_is_none_to_others(
        self, reviews: AccessReviews, namespace: str
    ) -> None:
        token = await self.give("dave", "get", "mailqueues", name="outgoing")
        user = await reviews.user_of(token, AUDIENCE)
        assert user
        own = ReviewedRight("get", "mailqueues", namespace, "outgoing")
        assert await reviews.allows(user, own)
        assert not await reviews.allows(user, ReviewedRight("get", "mailqueues", namespace, "a"))
        assert not await reviews.allows(user, ReviewedRight("get", "mailqueues", namespace))
