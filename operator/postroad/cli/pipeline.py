"""`postroad pipeline …`: the jobs of the data pipeline. Those that run Spark import it."""

from __future__ import annotations

import click

from postroad.pipeline import jars
from postroad.settings import from_environment


@click.group()
def pipeline() -> None:
    """Keep what the view of a queue forgets, and answer from it. It needs the extra `pipeline`,
    Java 17, and the jars that `postroad pipeline fetch` fetches once."""


@pipeline.command()
def fetch() -> None:
    """Fetch the jars of Spark into POSTROAD_PIPELINE_JARS, by Maven; their checksums are known."""
    folder = from_environment().pipeline.jars or jars.default_folder()
    count = jars.fetch(folder)
    click.echo(f"fetched {count} jar{'' if count == 1 else 's'} into {folder}")
