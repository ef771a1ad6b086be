"""`postroad signing`: what has to be in DNS for the keys that sign mail."""

from __future__ import annotations

from pathlib import Path

import click

from postroad.bootstrap.delivery.signing import selected_keys
from postroad.cli.options import json_option, say

_LONGEST_STRING = 255
"""Octets of one string of a TXT record. Source: RFC 1035 3.3.14."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@json_option
def signing(file: Path, as_json: bool) -> None:
    """Check the keys of a FILE of delivery, and print the TXT records for DNS.

    In the form of zone files. Asks no name server.
    """
    for name, key in selected_keys(file):
        kind, public = key.public
        record = f"v=DKIM1; k={kind}; p={public}"
        printed = {"name": name, "algorithm": key.algorithm, "bits": key.bits, "record": record}
        say(printed, as_json=as_json, text=_line(name, record))


def _line(name: str, record: str) -> str:
    pieces = range(0, len(record), _LONGEST_STRING)
    strings = " ".join(f'"{record[at : at + _LONGEST_STRING]}"' for at in pieces)
    return f"{name}. TXT ( {strings} )"
