"""Of two operator processes one has effects, whatever happens to the leader.

`POSTROAD_LEADER_ROUNDS` is how often each fault is repeated, once by default.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from support.leader_rounds import TAKEOVER_SECONDS, leader_rounds
from support.namespaces import side_by_side

ROUNDS = int(os.environ.get("POSTROAD_LEADER_ROUNDS", "1"))

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.timeout(120 + 180 * ROUNDS)]


async def test_another_operator_takes_over_and_the_former_has_no_effect(
    api: ApiServer, tmp_path: Path
) -> None:
    async def scene(api: ApiServer, namespace: str, fault: str) -> None:
        folder = tmp_path / fault
        folder.mkdir()
        async with leader_rounds(api, namespace, folder) as rounds:
            for _ in range(ROUNDS):
                await rounds.after(fault)

        rounds.check()
        assert max(rounds.takeovers) < TAKEOVER_SECONDS, rounds.takeovers
        print(f"{fault}: takeovers {[round(each, 1) for each in rounds.takeovers]} s")

    await side_by_side(api, ("suspend", "kill", "cut"), scene)
