"""Traces of mail in an attempt log."""

from pathlib import Path
from typing import NamedTuple

from postroad.adapters.disk.attempt_log import read_attempts
from postroad.domain.delivery.attempts import AttemptSelector, LoggedAttempt


class SearchedLog(NamedTuple):
    """Lines that fit, in order of time, and the numbers of those that were read, those of them
    without addresses, and those that cannot be read."""

    found: list[LoggedAttempt]
    read: int
    without_addresses: int
    unreadable: int


def search_attempts(folder: Path, wanted: AttemptSelector) -> SearchedLog:
    """Search a log. Files are read one after the other, so that few are open."""
    found: list[LoggedAttempt] = []
    read = without_addresses = unreadable = 0
    for line in read_attempts(folder, wanted.since):
        if line is None:
            unreadable += 1
            continue
        read += 1
        without_addresses += line.recipient is None
        if wanted.fits(line):
            found.append(line)
    found.sort(key=lambda line: line.at)
    return SearchedLog(found, read, without_addresses, unreadable)
