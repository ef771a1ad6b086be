"""Real servers on this machine, for tests: RabbitMQ, Cassandra, S3 and Kubernetes.

`stack.open()` returns a `Stack` in which they run; `python -m stack` does the same from a shell.
The package uses only the standard library, because it runs before anything is installed.
"""

from stack.errors import MissingRequirement, NotPossible, StackError, StepFailed
from stack.local import DEFAULT, Stack
from stack.local import open_stack as open  # noqa: A004  # reads as `stack.open()`
from stack.server import Server, State

__all__ = [
    "DEFAULT",
    "MissingRequirement",
    "NotPossible",
    "Server",
    "Stack",
    "StackError",
    "State",
    "StepFailed",
    "open",
]
