"""Base that all sections of the schema share."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from postroad.domain.mail.seven_bits import ascii_domain
from postroad.errors import InvalidInput


def domain_name(text: str) -> str:
    """Return a domain in A-labels and lower case. Raises: ValueError."""
    try:
        return ascii_domain(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from error


DomainName = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(domain_name)]


class DeliverySection(BaseModel):
    """A part of what an administrator decides about delivery; names as in resources."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # as `controller.spec_parts.Model`; files are read with "forbid"
        alias_generator=to_camel,
        use_attribute_docstrings=True,
    )
