"""Steps: each call of a port in memory is one of its process, the unit between two crashes."""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class ProcessSteps:
    """The steps of one process, which all succeed; tests have some that fail. `when_stopped` is
    called when the process is `stopped`."""

    def __init__(self) -> None:
        self.stopped = False
        self.when_stopped: list[Callable[[], None]] = []

    async def __call__(self, server: str, operation: str, effect: Callable[[], T]) -> T:
        """Run one step."""
        return effect()


class InProcess(Protocol):
    """An adapter of one process."""

    @property
    def steps(self) -> ProcessSteps: ...


Adapter = TypeVar("Adapter", bound=InProcess)


def step(
    server: str, operation: str | None = None
) -> Callable[
    [Callable[Concatenate[Adapter, P], T]],
    Callable[Concatenate[Adapter, P], Coroutine[Any, Any, T]],
]:
    """Make a method one step at a server. `operation`: None where it has the method's name."""

    def made(
        effect: Callable[Concatenate[Adapter, P], T],
    ) -> Callable[Concatenate[Adapter, P], Coroutine[Any, Any, T]]:
        name = operation or effect.__name__

        @wraps(effect)
        async def run(self: Adapter, /, *args: P.args, **options: P.kwargs) -> T:
            return await self.steps(server, name, partial(effect, self, *args, **options))

        return run

    return made
