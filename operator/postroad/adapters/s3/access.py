"""The address and user of an object store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Access:
    """A store and its user. `endpoint` None: AWS by region. Its repr has no key."""

    endpoint: str | None
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None

    @property
    def identity(self) -> dict[str, str]:
        """obstore's parameters for the store and the user; those without a value it finds as AWS's
        own tools do."""
        given = {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
        }
        return {name: value for name, value in given.items() if value is not None}
