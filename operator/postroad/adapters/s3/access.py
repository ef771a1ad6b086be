"""The address and user of an object store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from postroad.logins import LoginFolder

ASKED_AGAIN = timedelta(seconds=60)
"""The life of keys from files, for obstore."""


@dataclass(frozen=True, slots=True)
class Access:
    """A store and its user. `endpoint` None: AWS by region. Its repr has no key."""

    endpoint: str | None
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    login_folder: LoginFolder | None = None
    """Where the keys are read again for each request, instead of `access_key` and `secret_key`."""

    @property
    def keys(self) -> tuple[str | None, str | None]:
        """The access key and its secret as of now. Raises: CredentialsMissing."""
        if self.login_folder is None:
            return self.access_key, self.secret_key
        login = self.login_folder.read()
        return login.username, login.password

    @property
    def identity(self) -> dict[str, object]:
        """obstore's parameters for the store and the user; those without a value it finds as AWS's
        own tools do."""
        given = {
            "endpoint": self.endpoint and self.endpoint.rstrip("/"),
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "credential_provider": None if self.login_folder is None else self._renewed,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _renewed(self) -> dict[str, object]:
        """Return the keys in obstore's form. It asks again for those that expire soon."""
        access_key, secret_key = self.keys
        expires = datetime.now(UTC) + ASKED_AGAIN
        return {
            "access_key_id": access_key,
            "secret_access_key": secret_key,
            "token": None,
            "expires_at": expires,
        }
