"""Reads the configurations that a James server has recorded of his view."""

from pathlib import Path

from postroad.adapters.cassandra.session import Session
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.james.hiding import configurations_of
from postroad.james.properties import Configuration
from postroad.james.tables import EVENTS, JamesTables


async def recorded_configurations(folder: Path) -> tuple[ViewConfiguration, ...]:
    """Return them, oldest first, by his configuration directory. Raises: InvalidSettings,
    InvalidInput; ViewError, CredentialsRefused."""
    session = Session(Configuration(folder).cassandra())
    try:
        tables = JamesTables(session)
        await tables.check(EVENTS)
        return configurations_of(await tables.events())
    finally:
        await session.close()
