"""The summary that a run of a job writes in the end: in a pod, the operator reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path


def write_summary(
    file: Path | None,
    counts: Mapping[str, int],
    *,
    lag: timedelta | None = None,
    findings: int | None = None,
) -> None:
    """Write what a run counted, how far it was behind in the end, and how many findings it has of
    what it looked for; nothing without a file. Raises: OSError."""
    if file is not None:
        seconds = None if lag is None else max(0, int(lag.total_seconds()))
        found = {"counts": dict(counts), "lag_seconds": seconds, "findings": findings}
        file.write_text(json.dumps(found))
