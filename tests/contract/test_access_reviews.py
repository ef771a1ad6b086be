"""The contract of reviews over memory; `tests/controller/test_console_rights.py` has it over a real
API server."""

from __future__ import annotations

import pytest

from contract.access_reviews_contract import AUDIENCE, AccessReviewsContract
from postroad.ports.access_reviews import ReviewedRight
from support.reviewed_users import MemoryAccessReviews


class TestMemoryAccessReviews(AccessReviewsContract):
    """Over memory."""

    @pytest.fixture
    async def reviews(self) -> MemoryAccessReviews:
        self._reviews = MemoryAccessReviews()
        return self._reviews

    @pytest.fixture
    async def namespace(self) -> str:
        return "mail"

    async def give(
        self, user: str, verb: str, resource: str, *, name: str = "", audience: str = AUDIENCE
    ) -> str:
        self._reviews.rights.add((user, ReviewedRight(verb, resource, "mail", name)))
        self._reviews.tokens[f"token-of-{user}"] = user, audience
        return f"token-of-{user}"

    async def revoke(self, user: str) -> None:
        del self._reviews.tokens[f"token-of-{user}"]
