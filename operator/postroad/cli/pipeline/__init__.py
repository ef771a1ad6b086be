"""`postroad pipeline …`: jobs over the lake of a queue. Those that run Spark import it."""

from functools import partial

import click

from postroad.cli.lazy import LazyGroup, load

_PLACES = {
    **dict.fromkeys(("traffic", "destinations", "advise", "report"), "results"),
    **dict.fromkeys(("fetch", "archive", "export", "forget"), "archiving"),
}


@click.group(
    cls=LazyGroup,
    lazy={name: partial(load, f"{__name__}.{at}:{name}") for name, at in _PLACES.items()},
)
def pipeline() -> None:
    """Keep what the view of a queue forgets, and answer from it. It needs the extra `pipeline`,
    Java 17, and the jars that `postroad pipeline fetch` fetches once."""
