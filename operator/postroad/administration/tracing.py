"""Traces of mail in an attempt log."""

from pathlib import Path

from postroad.adapters.disk.attempt_log import read_attempts
from postroad.domain.delivery.attempts import AttemptSelector, LoggedAttempt


def search_attempts(folder: Path, wanted: AttemptSelector) -> tuple[list[LoggedAttempt], int, int]:
    """Return the lines that fit in order of time, and how many have no addresses, or cannot be
    read. Files of several processes are read one after the other, so that few are open."""
    found: list[LoggedAttempt] = []
    without_addresses = unreadable = 0
    for line in read_attempts(folder, wanted.since):
        if line is None:
            unreadable += 1
            continue
        without_addresses += line.recipient is None
        if wanted.fits(line):
            found.append(line)
    return sorted(found, key=lambda line: line.at), without_addresses, unreadable
