"""Tries one aspect of a resource and says what was found, whatever goes wrong.

An error of a server is a finding, not a failure of the reconcile: the other aspects go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from postroad.controller.conditions import Finding, bad, failed
from postroad.errors import (
    InvalidInput,
    KubernetesConflict,
    KubernetesUnavailable,
    PostroadError,
)
from postroad.telemetry import logs

SERVER_SECONDS = 30.0
"""For one aspect; a server that takes longer is reported and asked again later."""

_log = logs.logger("controller")


async def attempt(
    aspect: str, work: Callable[[], Awaitable[Finding]], seconds: float = SERVER_SECONDS
) -> Finding:
    """Do the work and return its finding, or a finding about its error.

    Raises: KubernetesUnavailable, KubernetesConflict: the whole look is repeated then.
    """
    try:
        async with asyncio.timeout(seconds):
            return await work()
    except TimeoutError:
        return bad(aspect, "TooSlow", f"no answer within {seconds:.0f} s", waits=True)
    except (KubernetesUnavailable, KubernetesConflict):
        raise
    except InvalidInput as error:
        return bad(aspect, "InvalidSpec", error.explain(), waits=False)
    except PostroadError as error:
        return failed(aspect, error)
    except ValidationError as error:
        return bad(aspect, "InvalidSpec", invalid_fields(error), waits=False)
    except Exception as error:
        _log.exception("an aspect could not be reconciled", aspect=aspect)
        name = type(error).__name__
        return bad(aspect, "UnexpectedError", f"{name}: see the operator's log", waits=True)


def invalid_fields(error: ValidationError) -> str:
    """Return what is wrong with a spec, without its values."""
    return "; ".join(
        f"spec.{'.'.join(map(str, each['loc']))}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    )
