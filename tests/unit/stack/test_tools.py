"""Tools are built by the commands that build servers, and by no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack import Stack, tools
from stack.cache import Entry
from stack.commands import main
from stack.progress import Progress


@pytest.fixture
def hammer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool that takes no time; returns where its program will be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("stack.golang.toolchain", lambda: ())

    def make(folder: Path, log: Path) -> None:
        (folder / "hammer").touch()

    entry = Entry("hammer", "1", "hammer: build", make)
    monkeypatch.setattr(tools, "TOOLS", {"hammer": lambda: (entry,)})
    return entry.path / "hammer"


@pytest.mark.parametrize("command", ["prepare", "up"])
def test_a_tool_is_built_where_servers_are(tmp_path: Path, hammer: Path, command: str) -> None:
    stack = Stack(tmp_path / "stack", environment={}, progress=Progress(quiet=True))
    assert not tools.is_prepared("hammer")

    getattr(stack, command)(["hammer"])

    assert tools.is_prepared("hammer")
    assert tools.program("hammer") == hammer
    assert hammer.exists()
    assert stack.running(["s3"]) == []


@pytest.mark.usefixtures("hammer")
def test_a_tool_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kill", "hammer"])

    assert "no server is called hammer" in capsys.readouterr().err
