"""The suppression list as an administrator changes it."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from postroad.delivery_settings.delivery import MAX_LIFETIME
from postroad.delivery_settings.files import read_delivery
from postroad.domain.delivery.attempts import checked_reason
from postroad.domain.delivery.suppressed import by_administrator, token_of
from postroad.domain.values.instants import format_duration
from postroad.errors import InvalidInput
from postroad.ports.delivery import SuppressionList

BY_HAND = "by an administrator"


def keeps_hashes(delivery_file: Path | None) -> bool:
    """Return whether lists have hashes in place of addresses, as the file of delivery decides.
    Raises: InvalidSettings."""
    rules = None if delivery_file is None else read_delivery(delivery_file).suppression_rules()
    return rules is not None and rules.is_hashed


def checked_tenant(tenant: str) -> str:
    """Return the name of a tenant. Raises: InvalidInput."""
    if not tenant.isprintable():  # nor has it what no UTF-8 holds
        raise InvalidInput("this is no name of a tenant")
    return tenant


async def suppress(
    listed: SuppressionList,
    tenant: str,
    addresses: Iterable[str],
    reason: str,
    at: datetime,
    *,
    lifetime: timedelta | None,
    is_hashed: bool,
) -> int:
    """Put addresses on a list; return how many. Raises: InvalidInput, errors of the list."""
    why = checked_reason(reason)
    if lifetime is not None and not timedelta(0) < lifetime <= MAX_LIFETIME:
        longest = format_duration(MAX_LIFETIME)
        raise InvalidInput(f"an address is suppressed for more than zero and at most {longest}")
    until = None if lifetime is None else at + lifetime
    made = [by_administrator(each, why, at, is_hashed=is_hashed, until=until) for each in addresses]
    await listed.add(checked_tenant(tenant), made)
    return len(made)


async def readmit(
    listed: SuppressionList, tenant: str, addresses: Iterable[str]
) -> tuple[int, list[str]]:
    """Take addresses, or tokens, off a list; return how many were on it, and those that were not.
    Raises: errors of the list."""
    tokens = {token_of(each): each for each in addresses}
    found = await listed.find(checked_tenant(tenant), tokens)
    await listed.remove(tenant, tokens)
    return len(found), [name for token, name in tokens.items() if token not in found]
