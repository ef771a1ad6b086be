"""The keys that sign follow the files of a mounted Secret, and stay where these are wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from postroad.bootstrap.delivery_file import DeliveryFile, FileSigner
from postroad.domain.mail.mail import TENANT, Envelope
from postroad.errors import InvalidSettings
from support.memory.clock import ManualClock
from support.mounted_secret import MountedSecret
from support.signing import ed25519_pem, rsa_pem

MAIL = b"From: a@one.example\r\nSubject: x\r\n\r\nbody\r\n"
ENVELOPE = Envelope("bounces@else.example", ("b@c.example",))
ONE = "signing: [{domain: one.example, keys: [{selector: s1, file: key.pem}]}]"
NEXT = ONE.replace("s1", "s2")


def mounted(folder: Path, text: str = ONE, key: bytes | None = None) -> MountedSecret:
    return MountedSecret(folder / "dkim", files(text, key))


def files(text: str, key: bytes | None = None) -> dict[str, str]:
    return {"delivery.yaml": text, "key.pem": (key or ed25519_pem()).decode()}


class Signer:
    """Signs by a file of delivery."""

    def __init__(self, file: Path) -> None:
        self._file = DeliveryFile(file)
        self.begin = FileSigner(lambda: self._file.current.signing, ManualClock()).begin

    async def look(self) -> None:
        await self._file.look(lambda _: None)


def signature(signer: Signer, mail: bytes = MAIL, envelope: Envelope = ENVELOPE) -> str:
    signing = signer.begin(mail.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", envelope)
    if signing is None:
        return ""
    signing.feed(mail)
    return signing.end().decode()


def figure(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelno == logging.ERROR]


async def test_a_rotated_key_signs_soon_without_a_restart(tmp_path: Path) -> None:
    secret = mounted(tmp_path)
    signer = Signer(secret.folder / "delivery.yaml")
    first = signature(signer)
    assert " s=s1; " in first

    secret.renew(files(NEXT, rsa_pem()))
    assert signature(signer) == first
    await signer.look()

    assert " s=s2; " in signature(signer)
    assert " a=rsa-sha256;" in signature(signer)


async def test_a_key_that_changes_under_its_name_signs_soon(tmp_path: Path) -> None:
    (tmp_path / "delivery.yaml").write_text(ONE)
    (tmp_path / "key.pem").write_bytes(ed25519_pem())
    signer = Signer(tmp_path / "delivery.yaml")
    before = signature(signer).rpartition("b=")[2]

    (tmp_path / "key.pem").write_bytes(ed25519_pem(1))
    await signer.look()

    assert signature(signer).rpartition("b=")[2] != before


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (NEXT, b"garbage"),
        (NEXT.replace("key.pem", "absent.pem"), None),
        ("signing: [", None),
        ("signed: []", None),
        (ed25519_pem().decode(), None),
    ],
    ids=["bad key", "no key", "no YAML", "unknown field", "a key instead"],
)
async def test_files_that_cannot_be_used_leave_the_keys_before_and_raise_an_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, key: bytes | None
) -> None:
    secret = mounted(tmp_path)
    signer = Signer(secret.folder / "delivery.yaml")
    secret.renew(files(text, key))

    for _ in range(3):
        await signer.look()
        assert " s=s1; " in signature(signer)

    assert errors(caplog) == ["delivery not changed, what was read before stays"]
    assert figure("postroad_delivery_file_refused") == 1
    assert not any(line in caplog.text for line in ed25519_pem().decode().splitlines()[1:-1])
    secret.renew(files(NEXT))
    await signer.look()
    assert " s=s2; " in signature(signer)
    assert figure("postroad_delivery_file_refused") == 0


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        (ONE, b"garbage", "key.pem cannot sign: it is no private key in PEM"),
        (ONE.replace("key.pem", "absent.pem"), None, "absent.pem cannot be read: No such file"),
        ("signing: 3", None, "delivery.yaml: signing"),
    ],
)
def test_files_that_cannot_be_used_are_refused_at_the_start(
    tmp_path: Path, text: str, key: bytes | None, problem: str
) -> None:
    secret = mounted(tmp_path, text, key)

    with pytest.raises(InvalidSettings, match=problem) as caught:
        Signer(secret.folder / "delivery.yaml")

    assert "garbage" not in str(caught.value)


def test_a_short_key_signs_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = mounted(tmp_path, key=rsa_pem(1024))

    signer = Signer(secret.folder / "delivery.yaml")

    assert "a=rsa-sha256" in signature(signer)
    assert [each.message for each in caplog.records] == ["weak DKIM key"]


def test_the_authors_domain_and_the_tenant_choose_the_keys(tmp_path: Path) -> None:
    text = ONE.replace("keys:", "tenants: [acme], keys:")
    signer = Signer(mounted(tmp_path, text).folder / "delivery.yaml")
    theirs = Envelope(None, ("b@c.example",), attributes={TENANT: "acme"})
    others = Envelope("a@one.example", ("b@c.example",), attributes={TENANT: "else"})

    assert " d=one.example;" in signature(signer, envelope=theirs)
    assert signature(signer) == signature(signer, envelope=others) == ""
    assert signature(signer, MAIL.replace(b"one", b"two"), theirs) == ""


def test_what_is_signed_and_what_cannot_be_is_counted(tmp_path: Path) -> None:
    signer = Signer(mounted(tmp_path).folder / "delivery.yaml")
    signed, unsigned = "postroad_signed_mails_total", "postroad_unsigned_mails_total"
    before = figure(signed), figure(unsigned, reason="header")

    assert signature(signer)
    assert signature(signer, b"Subject: no author\r\n\r\n") == ""
    assert signature(signer, MAIL.replace(b"Subject", b"To: c@d.example\r\n" * 300 + b"X")) == ""
    assert signature(signer, MAIL.replace(b"one", b"two")) == ""

    assert (figure(signed), figure(unsigned, reason="header")) == (before[0] + 1, before[1] + 2)
