"""Gives up the rights of root, for good."""

import os
from pathlib import Path


def become_owner(directory: Path) -> None:
    """Become the user of a directory, if this process is root and may be another: files that root
    makes in a store, its user cannot open. Raises: OSError."""
    if os.geteuid() == 0 and (found := directory.stat()).st_uid != 0:
        _become(found.st_uid, found.st_gid)


def _become(user: int, group: int) -> None:
    os.setgroups([group])  # first: a user that is not root may change no group
    os.setgid(group)
    os.setuid(user)
