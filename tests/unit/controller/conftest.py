"""Key derivations at the least cost: a test reads hundreds of Secrets, and guesses at none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.controller import credentials


@pytest.fixture(autouse=True)
def cheap_versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(credentials, "VERSION_COST", 2)
    yield
    credentials._version.cache_clear()
