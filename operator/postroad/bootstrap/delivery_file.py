"""A file of delivery with the files that it names, as the keys that sign mail, read again while the
process runs.

The kubelet swaps the files of a mounted ConfigMap or Secret by a symlink, as an administrator does
who wants both ends of a change at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from postroad.bootstrap.targets import check_files
from postroad.delivery_settings.delivery import DeliveryFileSettings, DomainSigning
from postroad.delivery_settings.files import read_delivery
from postroad.delivery_settings.hops import Hop
from postroad.domain.mail.mail import Envelope
from postroad.domain.mail.shapes import with_crlf
from postroad.errors import InvalidInput, InvalidMail, InvalidSettings
from postroad.file_stamps import FileStamp, stamp_of
from postroad.logins import LOGIN
from postroad.ports.clock import Clock
from postroad.signing.keys import GOOD_BITS, SigningKey
from postroad.signing.signatures import (
    MailSigner,
    SelectedKey,
    SigningPlan,
    author_domain,
    fields_of,
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


_log = logger("delivery")

LOOK_INTERVAL = timedelta(seconds=10)
"""Between two looks at the files, which cost a system call each."""

Use = Callable[[DeliveryFileSettings], None]
"""Takes up what a file of delivery has now. Raises: InvalidSettings, where the process cannot; what
it had stays then."""


@dataclass(frozen=True, slots=True)
class DeliveryDocument:
    """Content that a file of delivery has, and the keys that it names."""

    settings: DeliveryFileSettings
    signing: SigningPlan


class DeliveryFile:
    """A file of delivery. `current`: what was read last and could be used. `relay`: in place of the
    file's, if it is given. Raises: InvalidSettings where it, or a file that it names, cannot be
    used at the start. Later the error is logged once for each change of the files, and counted."""

    def __init__(self, file: Path, relay: Hop | None = None) -> None:
        self._file, self._relay = file, relay
        self._keys = KeyFiles()
        self._watched: dict[Path, FileStamp] = {}
        self.current = self._read()
        DELIVERY_REFUSED.set(0)

    async def follow(self, use: Use, asked: asyncio.Event) -> None:
        """Look at the files again and again, until cancelled; at once when `asked` is set."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL.total_seconds()):
                    await asked.wait()
            asked.clear()
            await self.look(use)

    async def look(self, use: Use) -> None:
        """Read the files again where one has changed. They are read in a thread, since a long one
        would block deliveries."""
        try:
            if await asyncio.to_thread(self._is_changed):
                self._take(await asyncio.to_thread(self._read), use)
        except InvalidSettings as error:
            self._refuse(error.explain())
        except Exception as error:  # else no later change would be seen
            _log.exception("unexpected error in the delivery file")
            self._refuse(type(error).__name__)

    def _take(self, found: DeliveryDocument, use: Use) -> None:
        use(found.settings)
        self.current = found
        DELIVERY_REFUSED.set(0)
        DELIVERY_READS.labels("used").inc()
        _log.info("delivery read again", file=str(self._file))

    def _refuse(self, problem: str) -> None:
        DELIVERY_REFUSED.set(1)
        DELIVERY_READS.labels("refused").inc()
        _log.error("delivery not changed, what was read before stays", error=problem)

    def _is_changed(self) -> bool:
        return any(stamp_of(path) != stamp for path, stamp in self._watched.items())

    def _read(self) -> DeliveryDocument:
        """Read all files that changed. Each is watched from before it is read, so that no change
        meanwhile stays unseen. Raises: InvalidSettings."""
        self._watched = {each: stamp_of(each) for each in {*self._watched, self._file}}
        settings = read_delivery(self._file)
        if self._relay is not None:
            settings = settings.model_copy(update={"relay": self._relay})
        folder, hops = self._file.parent, settings.hops()
        keys = {key.place(folder) for each in settings.signing for key in each.keys}
        logins = {each.login.folder for each in hops if each.login and each.login.folder}
        named = {*keys, *(each / name for each in logins for name in LOGIN)}
        stamps = {each: stamp_of(each) for each in named}
        self._watched = {self._file: self._watched[self._file], **stamps}
        for hop in hops:
            check_files(hop)
        return DeliveryDocument(settings, self._keys.plan(settings.signing, folder, stamps))
