"""The keys that sign mail, by a file of delivery: read again while the process runs.

Keys are rotated while a pod runs: the kubelet swaps the files of a mounted Secret by a symlink.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from postroad.delivery_settings.files import read_delivery
from postroad.delivery_settings.signing import DomainSigning
from postroad.domain.mail import Envelope
from postroad.domain.shapes import with_crlf
from postroad.errors import InvalidInput, InvalidMail, InvalidSettings
from postroad.ports.clock import Clock
from postroad.signing.headers import author_domain, fields_of
from postroad.signing.keys import GOOD_BITS, SigningKey
from postroad.signing.rules import SelectedKey, SigningPlan, SigningRule
from postroad.signing.signatures import MailSigner
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import SIGNED, SIGNING_REFUSED, UNSIGNED

_log = logger("signing")

LOOK_INTERVAL = timedelta(seconds=10)
"""Between two looks at the files, which cost a system call each."""

_Stamp = tuple[int, ...]


class FileSigner:
    """Signs by a file of delivery (the port `Signer`).

    Raises: InvalidSettings when it, or a key file that it names, cannot be used at the start. Later
    the last keys stay in use; the error is logged once for each change of the files, and
    `postroad_signing_files_refused` is 1.
    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file, self._clock = file, clock
        self._keys: dict[Path, tuple[_Stamp, SigningKey]] = {}
        self._watched: dict[Path, _Stamp] = {}
        self._plan = self._read()
        self._looked = clock.elapsed()
        SIGNING_REFUSED.set(0)

    def begin(self, header: bytes, envelope: Envelope) -> _CountedSigning | None:
        """Begin to sign a mail (see the port)."""
        self._look()
        if not self._plan.rules:
            return None
        try:
            domain = author_domain(fields_of(with_crlf(header)))
        except InvalidMail:
            UNSIGNED.labels("header").inc()
            return None
        rule = self._plan.find(domain, envelope.tenant)
        return None if rule is None else _CountedSigning(MailSigner(rule, self._clock.now()))

    def _look(self) -> None:
        """Read the files again where one has changed."""
        now = self._clock.elapsed()
        if now - self._looked < LOOK_INTERVAL:
            return
        self._looked = now
        if all(_stamp_of(path) == stamp for path, stamp in self._watched.items()):
            return
        try:
            self._plan = self._read()
        except InvalidSettings as error:
            SIGNING_REFUSED.set(1)
            _log.error("keys not changed, the last ones stay", error=error.explain())
        else:
            SIGNING_REFUSED.set(0)
            _log.info("keys read again", file=str(self._file))

    def _read(self) -> SigningPlan:
        """Read all files that changed. Each is watched from before it is read, so that no change
        meanwhile stays unseen. Raises: InvalidSettings."""
        self._watched = {each: _stamp_of(each) for each in {*self._watched, self._file}}
        domains = read_delivery(self._file).signing
        files = {self._place_of(each.file) for domain in domains for each in domain.keys}
        self._watched = {
            self._file: self._watched[self._file],
            **{each: _stamp_of(each) for each in files},
        }
        self._keys = {path: known for path, known in self._keys.items() if path in files}
        return SigningPlan(tuple(map(self._rule_of, domains)))

    def _place_of(self, file: Path) -> Path:
        return self._file.parent / file

    def _rule_of(self, domain: DomainSigning) -> SigningRule:
        keys = (SelectedKey(each.selector, self._key_of(each.file)) for each in domain.keys)
        return domain.rule(tuple(keys))

    def _key_of(self, file: Path) -> SigningKey:
        path = self._place_of(file)
        known, stamp = self._keys.get(path), self._watched[path]
        if known is not None and known[0] == stamp and stamp:
            return known[1]
        key = read_key(path)
        if key.bits is not None and key.bits < GOOD_BITS:
            _log.warning("a short key signs", file=str(path), bits=key.bits, least_good=GOOD_BITS)
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
            yield name, read_key(file.parent / each.file)


def _stamp_of(path: Path) -> _Stamp:
    """Return numbers that differ after a change of the file; none when it is missing."""
    try:
        its = path.stat()
    except OSError:
        return ()
    return its.st_dev, its.st_ino, its.st_size, its.st_mtime_ns, its.st_ctime_ns
