"""How a program is run in a folder with another Debian."""

import os
import subprocess
from pathlib import Path

from stack import debian


def test_a_folder_that_cannot_be_mounted_ends_the_command(tmp_path: Path) -> None:
    """Without root: in place of the mount namespace, a mount that is refused."""
    (tmp_path / "mount").write_text("#!/bin/sh\necho refused >&2; exit 32\n")
    (tmp_path / "mount").chmod(0o700)
    _, _, *command = debian.entering(tmp_path, [Path("/visible")], ["true"])

    done = subprocess.run(
        command,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )

    assert (done.returncode, done.stderr) == (32, "refused\n")
