"""`python -m release VERSION [--key FILE] [--base IMAGE] [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from release.errors import ReleaseRefused
from release.making import LISTING, make
from support.repository import ROOT


def main() -> int:
    """Make the release; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--key", default="", help="a private key of P-256 in PEM")
    parser.add_argument("--base", default="", help="build the image on this one, by buildah")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    try:
        key = Path(options.key).resolve() if options.key else None
        folder = make(ROOT, options.version, options.out, key, options.base)
    except ReleaseRefused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    listing = json.loads((folder / LISTING).read_text())
    print(f"release: {folder}", *(f"  {each}" for each in listing["files"]), sep="\n")
    for what, reason in listing["skipped"].items():
        print(f"  skipped: {what}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
