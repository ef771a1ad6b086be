"""Names of enumerations in resources and in the files that share their schema: CamelCase with an
initial capital, acronyms as they are written. Stored data, metric labels, variables and options of
commands have the values themselves, in lower case.

Source: Kubernetes API conventions (Constants)."""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_ACRONYMS = {each.upper(): each for each in ("CA", "DANE", "LMTP", "MX", "SMTP", "STS", "TLS")}
_ACRONYMS |= {"IPV4": "IPv4", "IPV6": "IPv6"}


def api_name(member: Enum) -> str:
    """Return the name of a member in resources.

    >>> from postroad.tls import Encryption
    >>> api_name(Encryption.VERIFY_CA)
    'VerifyCA'
    """
    return "".join(_ACRONYMS.get(each, each.capitalize()) for each in member.name.split("_"))


class ByApiName:
    """Marks a field of a model whose enumeration is read and written by the names in resources."""

    def __get_pydantic_core_schema__(self, source: Any, _: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads and writes the enumeration `source`."""
        members = {api_name(each): each for each in source}
        names = core_schema.literal_schema(list(members))
        return core_schema.no_info_before_validator_function(
            lambda value: api_name(value) if isinstance(value, source) else value,
            core_schema.no_info_after_validator_function(members.__getitem__, names),
            serialization=core_schema.plain_serializer_function_ser_schema(api_name),
        )


BY_API_NAME = ByApiName()
