"""Reviews of an API server whose answers lack something."""

from __future__ import annotations

from typing import Any

import pytest

from postroad.adapters.kubernetes.access_reviews import ApiAccessReviews
from postroad.errors import KubernetesUnavailable


class Answering:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def call(self, method: str, path: str, **given: object) -> Any:
        return self._answer


@pytest.mark.parametrize("user", [{}, {"uid": "1"}, {"username": ""}])
async def test_a_token_without_a_user_is_refused(user: dict[str, str]) -> None:
    status = {"authenticated": True, "audiences": ["ours"], "user": user}
    reviews = ApiAccessReviews(Answering({"status": status}))  # type: ignore[arg-type]
    assert await reviews.user_of("token", "ours") is None


@pytest.mark.parametrize("answer", [None, {}, {"status": "Failure"}])
async def test_an_answer_without_a_status_is_that_of_a_server_that_is_away(answer: object) -> None:
    reviews = ApiAccessReviews(Answering(answer))  # type: ignore[arg-type]
    with pytest.raises(KubernetesUnavailable):
        await reviews.user_of("token", "ours")
