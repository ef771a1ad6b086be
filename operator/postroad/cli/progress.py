"""Progress of long work, on a terminal's standard error; nothing where there is none."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import click

INTERVAL = 1.0
"""Seconds between two states; shorter work shows none."""

_CLEAR = "\r\033[K"


@contextmanager
def progress(label: str) -> Iterator[None]:
    """Show what is done and for how long, while it is done."""
    if not sys.stderr.isatty():
        yield
        return
    ended = Event()
    showing = Thread(target=_show, args=(label, ended), daemon=True)
    showing.start()
    try:
        yield
    finally:
        ended.set()
        showing.join()


def _show(label: str, ended: Event) -> None:
    began, text = time.monotonic(), ""
    while not ended.wait(INTERVAL):
        text = f"{_CLEAR}{label}: {time.monotonic() - began:.0f} s"
        click.echo(text, nl=False, err=True)
    if text:
        click.echo(_CLEAR, nl=False, err=True)
