"""`postroad completion`: what shells read to complete commands and options."""

from pathlib import Path

import click
from click.shell_completion import get_completion_class

PLACES = {
    "bash": ".local/share/bash-completion/completions/postroad",
    "zsh": ".zfunc/_postroad",
    "fish": ".config/fish/completions/postroad.fish",
}
"""Files of a home directory in which shells look; zsh does where `fpath` has its folder."""


@click.command()
@click.argument("shell", type=click.Choice([*PLACES]))
@click.option("--install", is_flag=True, help="Write it where the shell looks for it.")
def completion(shell: str, install: bool) -> None:
    """Print the completion for a SHELL, to be read at its start."""
    kind = get_completion_class(shell)
    assert kind is not None
    program = click.get_current_context().find_root().command
    text = kind(program, {}, "postroad", "_POSTROAD_COMPLETE").source()
    if not install:
        click.echo(text)
        return
    place = Path.home() / PLACES[shell]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    click.echo(f"wrote {place}; new shells complete `postroad`")
    if shell == "zsh":
        click.echo("~/.zshrc needs `fpath+=~/.zfunc` before `compinit`")
