"""`postroad executor`: what a driver of Spark runs in the pods of its executors."""

from __future__ import annotations

import os

import click

from postroad.bootstrap.cluster import cassandra_access, s3_access
from postroad.cli.pipeline.session import stores_of_a_pod
from postroad.pipeline.java import jars
from postroad.pipeline.java.executors import java_command
from postroad.pipeline.java.java import java_home
from postroad.settings import from_environment


@click.command(hidden=True)
def executor() -> None:
    """Become an executor of the driver that made this pod."""
    from postroad.pipeline.spark.reading.servers import cassandra_settings, trust_options
    from postroad.pipeline.spark.session import own_jars

    settings = from_environment()
    stores = stores_of_a_pod(settings)
    cassandra_settings(cassandra_access(settings), stores)  # for the stores that the driver names
    folder = settings.pipeline.jars or jars.default_folder()
    java = java_home(os.environ.get("JAVA_HOME")) / "bin/java"
    command = java_command(os.environ, java, f"{own_jars()}/*:{folder}/*")
    command[1:1] = trust_options(s3_access(settings), stores)
    os.execv(command[0], command)  # noqa: S606 - no shell: a program of the image
