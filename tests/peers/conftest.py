"""The peers that can run here, and a folder that they can read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.server import Peer, Road
from stack.errors import StackError
from support.certificates import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder none of whose parents is private, because the peers' own users must reach it."""
    folder = Path(tempfile.mkdtemp(prefix="postroad-peers-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def prepared(kind: type[Peer]) -> None:
    """Skip the test where a peer cannot run, with the reason."""
    if os.geteuid() != 0:
        pytest.skip("other mail servers run as root, in namespaces of their own")
    try:
        kind(Path("/"), Road(0)).prepare()
    except StackError as error:
        pytest.skip(f"{kind.name} cannot be had here: {error}")
