"""Of two operator processes one has effects, whatever happens to the leader.

`POSTROAD_LEADER_ROUNDS` is how often each fault is repeated, once by default.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroad.adapters.kubernetes.api_server import ApiServer
from support.leader_rounds import TAKEOVER_SECONDS, leader_rounds

ROUNDS = int(os.environ.get("POSTROAD_LEADER_ROUNDS", "1"))

pytestmark = [pytest.mark.needs("kubernetes"), pytest.mark.timeout(120 + 180 * ROUNDS)]


@pytest.mark.parametrize("fault", ["kill", "suspend", "cut"])
async def test_another_operator_takes_over_and_the_former_has_no_effect(
    api: ApiServer, namespace: str, tmp_path: Path, fault: str
) -> None:
    async with leader_rounds(api, namespace, tmp_path) as rounds:
        for _ in range(ROUNDS):
            await rounds.after(fault)

    rounds.check()
    assert max(rounds.takeovers) < TAKEOVER_SECONDS, rounds.takeovers
    print(f"{fault}: takeovers {[round(each, 1) for each in rounds.takeovers]} s")
