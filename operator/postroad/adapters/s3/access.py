"""Where an object store is, and who we are there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Access:
    """Where a store is and who we are there. `endpoint` None: AWS by region."""

    endpoint: str | None
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None

    @property
    def identity(self) -> dict[str, str]:
        """The parameters by which obstore knows a store and its user; what is not given, it finds
        as AWS's own tools do."""
        given = {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }
        return {name: value for name, value in given.items() if value is not None}
