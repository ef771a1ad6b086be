"""What a stack stores about one server: provider, ports, secrets. One JSON file, one writer."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.errors import StackError

FILE_NAME = "server.json"


@dataclass(frozen=True)
class Record:
    """The facts of a server that outlive its process."""

    provider: str
    ports: Mapping[str, int] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the record whole or not at all, readable by its owner only."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(dataclasses.asdict(self), file, indent=2)
        partial.rename(path)


def load(path: Path) -> Record | None:
    """Read a record; None when there is none.

    Raises:
        StackError: the file is damaged; `down` removes it.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            return Record(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise StackError(f"{path} is damaged ({error}); run `down` for this server") from error
    return None
