"""Runs the work behind one condition, and turns its errors into a finding.

A server's error is a finding, not a failure of the reconcile, so that the work behind the other
conditions goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from postroad.controller.actions import log_unexpected
from postroad.controller.conditions import Finding, bad, failed
from postroad.errors import (
    InvalidInput,
    KubernetesConflict,
    KubernetesUnavailable,
    PostroadError,
)

SERVER_SECONDS = 30.0
"""For one condition; the operator reports a server that takes longer, and tries again later."""


async def attempt(
    condition: str, work: Callable[[], Awaitable[Finding]], seconds: float = SERVER_SECONDS
) -> Finding:
    """Return the finding of the work, or one about its error.

    Raises: KubernetesUnavailable, KubernetesConflict, after which the reconcile is repeated.
    """
    try:
        async with asyncio.timeout(seconds):
            return await work()
    except TimeoutError:
        return bad(condition, "TooSlow", f"no answer within {seconds:.0f} s", retryable=True)
    except (KubernetesUnavailable, KubernetesConflict):
        raise
    except InvalidInput as error:
        return bad(condition, "InvalidSpec", error.explain(), retryable=False)
    except PostroadError as error:
        return failed(condition, error)
    except ValidationError as error:
        return bad(condition, "InvalidSpec", invalid_fields(error), retryable=False)
    except Exception as error:
        log_unexpected("reconcile failed unexpectedly", condition=condition)
        name = type(error).__name__
        return bad(condition, "UnexpectedError", f"{name}: see the operator's log", retryable=True)


def invalid_fields(error: ValidationError) -> str:
    """Return the errors of a spec, without its values."""
    return "; ".join(
        f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    )
