"""The lives of driver.py in a store that is archived: `archived.py DIR CALL ACCIDENT`."""

from __future__ import annotations

import sys
from pathlib import Path

from crash import driver


async def live(folder: Path) -> None:
    """Make the archive, and live."""
    (folder / "store/archive").mkdir(parents=True)
    await driver.live(folder)


if __name__ == "__main__":
    driver.main(live, driver.no_helper, Path(sys.argv[1]), *sys.argv[2:])
