"""Runs the work behind one condition, and turns its errors into a finding.

A server's error is a finding, not a failure of the reconcile, so that the work behind the other
conditions goes on."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from pydantic import ValidationError

from postroad.controller.kubernetes.actions import log_unexpected
from postroad.controller.status import conditions
from postroad.errors import (
    BlobsUnavailable,
    BrokerUnavailable,
    InvalidInput,
    KubernetesConflict,
    KubernetesError,
    KubernetesUnavailable,
    LeadershipLost,
    PostroadError,
    ServerError,
    ViewUnavailable,
)
from postroad.telemetry import metrics

SERVER_SECONDS = 30.0
"""For one condition; the operator reports a server that takes longer, and tries again later."""

SERVERS = {
    conditions.BROKER_READY: "rabbitmq",
    conditions.VIEW_READY: "cassandra",
    conditions.CONFIGURATION_ACCEPTED: "cassandra",
    conditions.BLOBS_READY: "s3",
}
"""Server that the work behind a condition asks."""

UNAVAILABLE: Mapping[str, type[ServerError]] = {
    conditions.BROKER_READY: BrokerUnavailable,
    conditions.VIEW_READY: ViewUnavailable,
    conditions.BLOBS_READY: BlobsUnavailable,
}
TOO_SLOW = "TooSlow"


@dataclass(slots=True)
class ApiErrors:
    """Actions of a reconcile where the API server does not answer, or an object has changed since
    it was read: it ends and is repeated, unless these errors last (`reported`); then they are
    findings too. `met`: there was one."""

    reported: bool
    met: bool = False


_api_errors: ContextVar[ApiErrors | None] = ContextVar("api_errors", default=None)


@contextmanager
def api_errors(*, reported: bool) -> Iterator[ApiErrors]:
    """Let the attempts of the block, also those of tasks that begin there, report such errors."""
    errors = ApiErrors(reported)
    token = _api_errors.set(errors)
    try:
        yield errors
    finally:
        _api_errors.reset(token)


def ends_reconcile(error: Exception) -> bool:
    """True if an error ends the reconcile, to be repeated, instead of being a finding."""
    errors = _api_errors.get()
    if not isinstance(error, (KubernetesUnavailable, KubernetesConflict)):
        return isinstance(error, LeadershipLost)
    if errors is not None:
        errors.met = True
    return errors is None or not errors.reported


@dataclass(slots=True)
class Attempt:
    """The finding of a block of work."""

    finding: conditions.Finding


@asynccontextmanager
async def attempt(condition: str, seconds: float = SERVER_SECONDS) -> AsyncIterator[Attempt]:
    """Yield what gets the finding of the block. An error ends the block, and is the finding.
    Raises: KubernetesUnavailable, KubernetesConflict, after which the reconcile is repeated, unless
    these last; LeadershipLost, after which another operator repeats it."""
    attempted = Attempt(conditions.good(condition, "done"))
    try:
        async with asyncio.timeout(seconds):
            yield attempted
    except TimeoutError as error:
        attempted.finding = silent(condition, f"no answer within {seconds:.0f} s")
        count_error(SERVERS.get(condition), error)
    except InvalidInput as error:
        attempted.finding = conditions.bad(
            condition, "InvalidSpec", error.explain(), retryable=False
        )
    except PostroadError as error:
        if ends_reconcile(error):
            raise
        attempted.finding = conditions.failed(condition, error)
        if isinstance(error, KubernetesError) and condition in SERVERS:
            # The API server refused: of the server behind the condition nothing is known.
            attempted.finding = replace(attempted.finding, truth=conditions.Truth.UNKNOWN)
        count_error(SERVERS.get(condition), error)
    except ValidationError as error:
        attempted.finding = conditions.bad(
            condition, "InvalidSpec", invalid_fields(error), retryable=False
        )
    except Exception as error:
        log_unexpected("reconcile failed unexpectedly", condition=condition)
        attempted.finding = unexpected(condition, error)


def unexpected(condition: str, error: Exception) -> conditions.Finding:
    """Return the finding about an error that the operator does not know."""
    message = f"{type(error).__name__}: see the operator's log"
    return conditions.bad(condition, "UnexpectedError", message, retryable=True)


def count_error(server: str | None, error: BaseException | None) -> None:
    """Count an error for metrics if a server is its cause: the API server, or this one."""
    if isinstance(error, KubernetesError):
        server = "kubernetes"
    if server is not None and isinstance(error, (ServerError, TimeoutError)):
        name = TOO_SLOW if isinstance(error, TimeoutError) else type(error).__name__
        metrics.SERVER_ERRORS.labels(server, name).inc()


def silent(condition: str, message: str) -> conditions.Finding:
    """Return the finding about work that took too long: that of a server which is away, so that the
    reason stays the same when the server is next found to be."""
    if condition in UNAVAILABLE:
        return conditions.failed(condition, UNAVAILABLE[condition](message))
    return conditions.bad(condition, TOO_SLOW, message, retryable=True)


def invalid_fields(error: ValidationError) -> str:
    """Return the errors of a spec, without its values."""
    return "; ".join(
        f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    )
