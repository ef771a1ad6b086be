"""Configuration that stands still."""

from __future__ import annotations

from postroad.domain.configuration.rules import ViewConfiguration
from postroad.ports.history import Effective


class FixedConfiguration:
    """A `ConfigurationSource` whose configuration a test (or nobody) changes."""

    def __init__(self, configuration: ViewConfiguration | None = None) -> None:
        wanted = configuration or ViewConfiguration()
        self.current = Effective(wanted, (wanted,))

    def effective(self) -> Effective:
        return self.current
