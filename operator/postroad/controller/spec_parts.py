"""What the models of both specs are made of."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel

from postroad.domain.durations import format_duration, parse_duration

DURATION_PATTERN = "^([0-9]{1,6}h)?([0-9]{1,8}m)?([0-9]{1,9}s)?$"
NAME_PATTERN = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


def _alias(name: str) -> str:
    return to_camel(name).replace("Url", "URL")


def _duration(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration),
    WithJsonSchema(
        {"type": "string", "minLength": 2, "maxLength": 16, "pattern": DURATION_PATTERN}
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=NAME_PATTERN)]
Host = Annotated[str, Field(min_length=1, max_length=253)]
Port = Annotated[int, Field(ge=1, le=65535)]
Replicas = Annotated[int, Field(ge=0, le=1000)]
Schedule = Annotated[str, Field(min_length=1, max_length=100)]
Anything = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class Model(BaseModel):
    """A part of a spec: immutable, with the API's names as aliases."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # the API server prunes; a newer CRD may know more than this program
        alias_generator=_alias,
        populate_by_name=True,
        use_attribute_docstrings=True,
        ser_json_timedelta="iso8601",
    )
