"""The types of settings: how their text in a variable is read."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf

from postroad.domain.mail.mail import MAILBOX_PATTERN
from postroad.domain.values.instants import parse_duration
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidInput

T = TypeVar("T")


def split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def parsed(kind: type[T], parse: Callable[[str], T]) -> BeforeValidator:
    """Parse the text of a value that is not of this type yet; InvalidInput makes it invalid."""

    def check(value: object) -> T:
        try:
            return value if isinstance(value, kind) else parse(str(value))
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(check)


Duration = Annotated[timedelta, parsed(timedelta, parse_duration), Field(gt=timedelta(0))]
"""Written as in Kubernetes: `1h30m`."""

Mailbox = Annotated[str, Field(max_length=254, pattern=MAILBOX_PATTERN)]
"""An address in ASCII, without quotes."""

NetworkList = Annotated[InstanceOf[Networks], parsed(Networks, Networks.parse)]
"""Comma separated."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
