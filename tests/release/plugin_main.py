"""Begins `kubectl-mailqueue` as one file: unpacks it beside other caches of the user, since no
compiled library is loaded from an archive, and runs it."""

import os
import platform
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

PYTHONS: list[str] = []  # filled in when the file is made, as the next two
MACHINE = DIGEST = ""


def unpacked() -> str:
    """Return the folder of the files, which appears whole."""
    parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "postroad"
    folder = parent / f"kubectl-mailqueue-{DIGEST}"
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if parent.stat().st_uid != os.getuid():
            raise PermissionError
        if folder.is_dir():
            return str(folder)
        made = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=parent))
        with zipfile.ZipFile(Path(__file__).parent) as files:
            files.extractall(made)
    except OSError:
        sys.exit(f"kubectl-mailqueue: {parent} cannot be written: set XDG_CACHE_HOME")
    try:
        made.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(made)
    return str(folder)


def main() -> None:
    present = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine = f"{sys.platform}-{platform.machine()}"
    if present not in PYTHONS or machine != MACHINE:
        wanted = f"Python {' or '.join(PYTHONS)} on {MACHINE}"
        sys.exit(
            f"kubectl-mailqueue: this file is for {wanted}, and this is Python {present} on "
            f"{machine}: run it by another Python, or make it here (make plugin)"
        )
    sys.path.insert(0, unpacked())
    if Path(sys.argv[0]).name.startswith("kubectl_complete"):
        from postroad.cli import complete_kubectl as run
    else:
        from postroad.cli import kubectl_mailqueue as run
    run()


main()
