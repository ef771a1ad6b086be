"""What Spark raises, as the errors of postroad."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from postroad.errors import CredentialsRefused, JobFailed

_REFUSED = (
    *("AuthenticationException", "UnauthorizedException", "AccessDenied"),
    *("InvalidAccessKeyId", "SignatureDoesNotMatch"),
)
"""What the names and texts of refusals have in them."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise what Spark raises as one line. Raises: JobFailed, CredentialsRefused."""
    try:
        yield
    except Py4JJavaError as error:
        causes = _causes(error.java_exception)
        line = _line(causes[-1])
        if any(word in cause for cause in causes for word in _REFUSED):
            raise CredentialsRefused(line) from error
        raise JobFailed(line) from error
    except PySparkException as error:
        raise JobFailed(_line(str(error))) from error
    except (Py4JError, ConnectionError) as error:
        raise JobFailed(f"Java ended, as when it has too little memory: {error}") from error


def _line(text: str) -> str:
    """Return the first line of an error; of one in a process of Python, what postroad raised
    there."""
    lines = text.strip().splitlines()
    raised = [each for each in lines if each.startswith("postroad.errors.")]
    return (raised[-1] if raised else lines[0])[:300]


def _causes(exception: object) -> list[str]:
    """Return an exception of Java and its causes as text, the first cause last."""
    found: list[str] = []
    while exception is not None and len(found) < 20:
        found.append(exception.toString())  # type: ignore[attr-defined]
        exception = exception.getCause()  # type: ignore[attr-defined]
    return found
