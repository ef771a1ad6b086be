"""Which files decide whether an image is built again."""

from pathlib import Path

import pytest

from stack import contexts

FILES = ("a.py", "b.md", "docs/c.md", "docs/keep.md", "x/build/d", "build/e", ".git/config")


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(context: Path) -> set[str]:
    found = {path.relative_to(context).as_posix() for path in contexts.files(context)}
    return found - {".dockerignore"}


@pytest.mark.parametrize(
    ("rules", "gone"),
    [
        ("", set()),
        ("# nothing\n\n", set()),
        ("build", {"build/e"}),
        ("/build/", {"build/e"}),
        ("**/build", {"build/e", "x/build/d"}),
        ("*.md", {"b.md"}),
        ("**/*.md", {"b.md", "docs/c.md", "docs/keep.md"}),
        ("docs\n!docs/keep.md", {"docs/c.md"}),
        ("*\n!a.py", set(FILES) - {"a.py"}),
        ("?.py", {"a.py"}),
        (".git", {".git/config"}),
    ],
)
def test_ignored_files_are_left_out(context: Path, rules: str, gone: set[str]) -> None:
    (context / ".dockerignore").write_text(rules)

    assert names(context) == set(FILES) - gone


def test_the_digest_follows_names_contents_and_modes(context: Path) -> None:
    digests = [contexts.digest(context), contexts.digest(context)]
    (context / "a.py").chmod(0o755)
    digests.append(contexts.digest(context))
    (context / "a.py").write_text("changed")
    digests.append(contexts.digest(context))
    (context / "a.py").rename(context / "z.py")
    digests.append(contexts.digest(context))

    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_an_ignored_file_does_not_change_the_digest(context: Path) -> None:
    (context / ".dockerignore").write_text("build")
    before = contexts.digest(context)

    (context / "build" / "e").write_text("changed")

    assert contexts.digest(context) == before
