"""A file of delivery with the files that it names, as the keys that sign mail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from postroad.bootstrap.followed_file import FollowedFile, read_return_paths
from postroad.bootstrap.targets import check_files
from postroad.delivery_settings.delivery import DeliveryFileSettings, DomainSigning
from postroad.delivery_settings.files import read_delivery
from postroad.delivery_settings.hops import Hop
from postroad.domain.mail.address_lists import fields_of
from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.return_paths import ReturnPaths
from postroad.domain.mail.shapes import with_crlf
from postroad.errors import InvalidInput, InvalidMail, InvalidSettings
from postroad.file_stamps import FileStamp
from postroad.logins import LOGIN
from postroad.ports.clock import Clock
from postroad.signing.keys import GOOD_BITS, SigningKey
from postroad.signing.signatures import (
    MailSigner,
    SelectedKey,
    SigningPlan,
    author_domain,
)
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import DELIVERY_READS, DELIVERY_REFUSED, SIGNED, UNSIGNED

_key_log = logger("signing")


class FileSigner:
    """Signs by a plan that may change meanwhile (the port `Signer`)."""

    def __init__(self, plan: Callable[[], SigningPlan], clock: Clock) -> None:
        self._plan, self._clock = plan, clock

    def begin(self, header: bytes, envelope: Envelope) -> _CountedSigning | None:
        """Begin to sign a mail (see the port)."""
        plan = self._plan()
        if not plan.rules:
            return None
        try:
            domain = author_domain(fields_of(with_crlf(header)))
        except InvalidMail:
            UNSIGNED.labels("header").inc()
            return None
        rule = plan.find(domain, envelope.tenant)
        return None if rule is None else _CountedSigning(MailSigner(rule, self._clock.now()))


class KeyFiles:
    """The keys that files have; one whose file did not change is not read again."""

    def __init__(self) -> None:
        self._keys: dict[Path, tuple[FileStamp, SigningKey]] = {}

    def plan(
        self, domains: Iterable[DomainSigning], folder: Path, stamps: Mapping[Path, FileStamp]
    ) -> SigningPlan:
        """Return what signs. `folder`: where relative paths begin. Raises: InvalidSettings."""
        self._keys = {path: known for path, known in self._keys.items() if path in stamps}
        return SigningPlan(
            tuple(
                domain.rule(
                    tuple(
                        SelectedKey(each.selector, self._key_at(each.place(folder), stamps))
                        for each in domain.keys
                    )
                )
                for domain in domains
            )
        )

    def _key_at(self, path: Path, stamps: Mapping[Path, FileStamp]) -> SigningKey:
        known, stamp = self._keys.get(path), stamps[path]
        if known is not None and known[0] == stamp and stamp:
            return known[1]
        key = read_key(path)
        if key.bits is not None and key.bits < GOOD_BITS:
            _key_log.warning("weak DKIM key", file=str(path), bits=key.bits, least_good=GOOD_BITS)
        self._keys[path] = stamp, key
        return key


class _CountedSigning:
    """A signing whose failure is a number, since the mail is sent in any case."""

    def __init__(self, signer: MailSigner) -> None:
        self._signer = signer

    def feed(self, octets: bytes) -> None:
        self._signer.feed(octets)

    def end(self) -> bytes:
        try:
            fields = self._signer.end()
        except InvalidMail:
            UNSIGNED.labels("header").inc()
            return b""
        SIGNED.inc()
        return fields


def read_key(file: Path) -> SigningKey:
    """Read a key. Raises: InvalidSettings, which names the file and quotes nothing of it."""
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"the key {file} cannot be read: {error.strerror}") from None
    try:
        return SigningKey.read(pem)
    except InvalidInput as error:
        problem = str(error)
    raise InvalidSettings(f"the key {file} cannot sign: {problem}")


def selected_keys(file: Path) -> Iterable[tuple[str, SigningKey]]:
    """Yield each key with the name of its record in DNS. Raises: InvalidSettings."""
    for domain in read_delivery(file).signing:
        for each in domain.keys:
            name = f"{each.selector}._domainkey.{domain.domain}"
            yield name, read_key(each.place(file.parent))


@dataclass(frozen=True, slots=True)
class DeliveryDocument:
    """Content that a file of delivery has, and the keys that it names."""

    settings: DeliveryFileSettings
    signing: SigningPlan
    return_paths: ReturnPaths | None


class DeliveryFile(FollowedFile[DeliveryDocument]):
    """A file of delivery. `relay`: in place of the file's, if it is given."""

    def __init__(self, file: Path, relay: Hop | None = None) -> None:
        self._relay = relay
        self._keys = KeyFiles()
        super().__init__(file, "delivery", DELIVERY_REFUSED, DELIVERY_READS)

    def _read(self) -> DeliveryDocument:
        """Read all files that changed. Raises: InvalidSettings."""
        self._watch({*self._watched, self.file})
        settings = read_delivery(self.file)
        if self._relay is not None:
            settings = settings.model_copy(update={"relay": self._relay})
        folder, hops = self.file.parent, settings.hops()
        keys = {key.place(folder) for each in settings.signing for key in each.keys}
        logins = {each.login.folder for each in hops if each.login and each.login.folder}
        verp = settings.verp_secret and settings.verp_secret.file
        secrets = {folder / verp} if verp else set()
        stamps = self._watch(
            {*keys, *secrets, *(each / name for each in logins for name in LOGIN)}, anew=True
        )
        for hop in hops:
            check_files(hop)
        return DeliveryDocument(
            settings,
            self._keys.plan(settings.signing, folder, stamps),
            read_return_paths(folder / verp) if verp else None,
        )
