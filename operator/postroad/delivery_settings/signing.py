"""The schema of signing: whose mail is signed, and with which keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, WithJsonSchema, model_validator

from postroad.delivery_settings.patterns import TenantName
from postroad.delivery_settings.secret_references import SecretKeyReference
from postroad.delivery_settings.sections import DeliverySection, DomainName
from postroad.signing.signatures import Canonical, SelectedKey, SigningRule

_LABEL = "[A-Za-z0-9](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9])?"


def _path_of(value: object) -> object:
    if isinstance(value, str) and ("\n" in value or "-----" in value):
        raise ValueError("write the path of a file that has the key, not the key")
    return value


class DomainKey(DeliverySection):
    """A private key, RSA or Ed25519 in PEM without a password, and the selector of its record in
    DNS."""

    selector: Annotated[str, Field(max_length=190, pattern=rf"^{_LABEL}(?:\.{_LABEL})*$")]
    """Under `<selector>._domainkey.<domain>`, DNS has the public half of the key."""

    secret_ref: SecretKeyReference | None = None
    """The key of a Secret that has the private key. Another value is used once the kubelet has
    written it into the pod, within about a minute."""

    file: (
        Annotated[
            Path,
            BeforeValidator(_path_of),
            WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 1024}),
        ]
        | None
    ) = None
    """File of the private key, in place of secretRef, in a volume that workers.template mounts. A
    relative path begins at the folder of the file of delivery."""

    @model_validator(mode="after")
    def _has_one_place(self) -> DomainKey:
        if (self.secret_ref is None) == (self.file is None):
            raise ValueError("give either secretRef (in a MailQueue) or file")
        return self

    def place(self, folder: Path) -> Path:
        """Return where the key is, of one in a file. `folder`: of the file of delivery."""
        assert self.file is not None
        return folder / self.file


class DomainSigning(DeliverySection):
    """Signatures for one domain."""

    domain: DomainName
    """Mail is signed whose field `From` has an address in this domain; the signatures are its."""

    keys: Annotated[tuple[DomainKey, ...], Field(min_length=1, max_length=4)]
    """Each makes a signature."""

    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1, max_length=1000)] | None = None
    """Mail of these tenants alone, by the attribute `postroad.tenant`. Absent: all."""

    subdomains: StrictBool = False
    """Also mail of authors in domains below it that have no entry of their own."""

    canonicalization: Annotated[
        str, Field(max_length=15, pattern=r"^(relaxed|simple)/(relaxed|simple)$")
    ] = "relaxed/relaxed"
    """The forms of header and body over which digests are computed: relaxed or simple."""

    @model_validator(mode="after")
    def _has_each_selector_once(self) -> DomainSigning:
        counts = Counter(each.selector.lower() for each in self.keys)
        if twice := [selector for selector, count in counts.items() if count > 1]:
            raise ValueError(f"the selector {twice[0]} stands twice: a record in DNS has one key")
        return self

    def rule(self, keys: tuple[SelectedKey, ...]) -> SigningRule:
        tenants = None if self.tenants is None else frozenset(self.tenants)
        header, _, body = self.canonicalization.partition("/")
        forms = Canonical(header), Canonical(body)
        return SigningRule(self.domain, keys, tenants, self.subdomains, *forms)
