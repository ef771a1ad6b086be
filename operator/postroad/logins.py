"""Files of a user's name and password, which are read again as an administrator renews them.

The kubelet swaps all files of a mounted Secret at once, by its link `..data`: a name and a password
that are read through one target of this link belong together."""

from dataclasses import dataclass, field
from pathlib import Path

from postroad.errors import CredentialsMissing

LOGIN = ("username", "password")
S3_LOGIN = ("accessKey", "secretKey")
"""The files of a user's name and password, and of an access key and its secret."""

_SWAPPED = "..data"
_ATTEMPTS = 3
"""The kubelet removes what it swapped out, at most once while a login is read."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user at a server. Its repr has no password."""

    username: str
    password: str = field(repr=False)


@dataclass(slots=True)
class LoginFolder:
    """A folder with the files of a login, by their names. Safe to use from several threads."""

    folder: Path
    names: tuple[str, str] = LOGIN
    _known: tuple[object, Login] | None = field(default=None, repr=False)

    def read(self) -> Login:
        """Return the login as the files have it now; unchanged files are not read again.
        Raises: CredentialsMissing."""
        problem: OSError | ValueError | None = None
        for _ in range(_ATTEMPTS):
            try:
                return self._read()
            except (OSError, ValueError) as error:
                problem = error
        raise CredentialsMissing(
            f"the login in {self.folder} cannot be read: {type(problem).__name__}",
            hint=f"it needs the files {' and '.join(self.names)}",
        ) from problem

    def _read(self) -> Login:
        swapped = self.folder / _SWAPPED
        folder = swapped.resolve(strict=True) if swapped.is_symlink() else self.folder
        stats = [(folder / name).stat() for name in self.names]
        version = (folder, *((each.st_ino, each.st_mtime_ns, each.st_size) for each in stats))
        known = self._known
        if known is None or known[0] != version:
            username, password = ((folder / name).read_text().strip("\r\n") for name in self.names)
            known = self._known = version, Login(username, password)
        return known[1]
