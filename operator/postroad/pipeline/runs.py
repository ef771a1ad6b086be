"""Runs of jobs, as the lake records them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class Run(NamedTuple):
    """One execution of a job. `counts`: what it read and wrote, by name."""

    run_id: UUID
    job: str
    began: datetime
    ended: datetime
    counts: Mapping[str, int]
