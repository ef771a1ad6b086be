"""The schema of signing: whose mail is signed, and with which keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from postroad.delivery_settings.sections import DeliverySection, DomainName
from postroad.signing.canonical import Canonical
from postroad.signing.rules import SelectedKey, SigningRule

_LABEL = "[A-Za-z0-9](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9])?"


def _path_of(value: object) -> object:
    if isinstance(value, str) and ("\n" in value or "-----" in value):
        raise ValueError("write the path of a file that has the key, not the key")
    return value


class KeyFile(DeliverySection):
    """A private key, and the selector of its record in DNS."""

    selector: Annotated[str, Field(max_length=190, pattern=rf"^{_LABEL}(?:\.{_LABEL})*$")]

    file: Annotated[Path, BeforeValidator(_path_of)]
    """PEM file of an RSA or Ed25519 key without a password; a relative path begins at the folder of
    this file."""


class DomainSigning(DeliverySection):
    """Signatures for one domain."""

    domain: DomainName
    """Mail is signed whose field `From` has an address in this domain; the signatures are its."""

    keys: Annotated[tuple[KeyFile, ...], Field(min_length=1, max_length=4)]
    """Each makes a signature."""

    tenants: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Mail of these tenants alone."""

    subdomains: bool = False
    """Also mail of authors in domains below it that have no entry of their own."""

    canonicalization: Annotated[str, Field(pattern=r"^(relaxed|simple)/(relaxed|simple)$")] = (
        "relaxed/relaxed"
    )
    """The forms of header and body over which digests are computed."""

    @model_validator(mode="after")
    def _has_each_selector_once(self) -> DomainSigning:
        counts = Counter(each.selector.lower() for each in self.keys)
        if twice := [selector for selector, count in counts.items() if count > 1]:
            raise ValueError(f"the selector {twice[0]} stands twice: a record in DNS has one key")
        return self

    def rule(self, keys: tuple[SelectedKey, ...]) -> SigningRule:
        """Return the value that signing uses."""
        tenants = None if self.tenants is None else frozenset(self.tenants)
        header, _, body = self.canonicalization.partition("/")
        forms = Canonical(header), Canonical(body)
        return SigningRule(self.domain, keys, tenants, self.subdomains, *forms)
