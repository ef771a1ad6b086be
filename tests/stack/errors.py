"""Errors of the local stack, each with what to do about it.

StackError
├── MissingRequirement   a program, package or right that this machine lacks
├── StepFailed           a build, a download or a server's start failed; names its log
└── NotPossible          the server's provider cannot do what was asked (kill what it did not start)
"""

from pathlib import Path


class StackError(Exception):
    """The local stack cannot do what was asked."""


class MissingRequirement(StackError):
    """This machine lacks something the stack needs."""


class NotPossible(StackError):
    """The provider of this server cannot do that."""


class StepFailed(StackError):
    """A step failed; its log tells why."""

    def __init__(self, step: str, log: Path | None = None) -> None:
        """Name the step and, if it has a log, show the end of that."""
        message = f"{step} failed"
        if log is not None:
            message += f"; log: {log}\n{tail(log)}"
        super().__init__(message)


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, indented; empty when there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
