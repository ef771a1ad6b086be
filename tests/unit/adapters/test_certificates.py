"""The certificate that clients see follows its files."""

from __future__ import annotations

import logging
import ssl
import subprocess
from pathlib import Path

import pytest

from postroad.domain.smtp.next_hops import TlsMode
from postroad.errors import InvalidSettings
from postroad.smtp.client.opening import context_for
from postroad.smtp.server import ServerCertificate
from support.certificates import Certificates


def shown(certificate: ServerCertificate) -> bytes:
    """What a client sees that begins a session now."""
    client, server = (ssl.MemoryBIO(), ssl.MemoryBIO())
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    ours = trusting.wrap_bio(client, server)
    theirs = certificate.context().wrap_bio(server, client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours.getpeercert(binary_form=True) or b""


def der(files: Certificates) -> bytes:
    pem = files.chain.read_text()
    return ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN") :])


def encrypt(key: Path) -> None:
    plain = key.rename(key.with_suffix(".plain"))
    command = f"pkey -in {plain} -out {key} -aes256 -passout pass:secret"
    subprocess.run(["openssl", *command.split()], check=True, timeout=30)


class Mounted:
    """A Secret as the kubelet mounts it: names that lead through a symlink, which is swapped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, folder / "..data"
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self._data.symlink_to(self.made("first"))
        self.certificate.symlink_to(self._data / "tls.crt")
        self.key.symlink_to(self._data / "tls.key")

    def made(self, name: str) -> Path:
        (self._folder / name).mkdir()
        Certificates.make(self._folder / name)
        return self._folder / name

    def swap(self, folder: Path) -> None:
        new = self._folder / "..data_tmp"
        new.symlink_to(folder)
        new.rename(self._data)

    def current(self) -> bytes:
        folder = self._data.resolve()
        return der(Certificates(folder / "ca.crt", folder / "tls.crt", folder / "tls.key"))


def test_a_session_sees_the_certificate_that_is_there_when_it_begins(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path)
    certificate = ServerCertificate(mounted.certificate, mounted.key)
    first = mounted.current()
    assert shown(certificate) == first
    assert certificate.context() is certificate.context(), "nothing is read that did not change"

    mounted.swap(mounted.made("second"))

    assert shown(certificate) == mounted.current() != first


@pytest.mark.parametrize("damage", ["garbage", "another key", "missing", "encrypted"])
def test_one_that_cannot_be_used_leaves_the_one_before_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    mounted = Mounted(tmp_path)
    certificate = ServerCertificate(mounted.certificate, mounted.key)
    first = mounted.current()
    second, third = mounted.made("second"), mounted.made("third")
    if damage == "garbage":
        (second / "tls.crt").write_text("garbage")
    elif damage == "another key":
        (second / "tls.key").write_bytes((third / "tls.key").read_bytes())
    elif damage == "encrypted":
        encrypt(second / "tls.key")
    else:
        (second / "tls.key").unlink()

    mounted.swap(second)

    assert [shown(certificate) for _ in range(3)] == [first] * 3
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.message for each in errors] == ["certificate cannot be used, the last one stays"]
    mounted.swap(third)
    assert shown(certificate) == mounted.current()


def test_one_that_cannot_be_used_at_the_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("garbage")

    with pytest.raises(InvalidSettings) as refused:
        ServerCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")

    assert f"{tmp_path}/tls.crt with the key {tmp_path}/tls.key" in str(refused.value)
    assert "POSTROAD_INTAKE_TLS_CERTIFICATE" in refused.value.hint


def test_a_file_of_authorities_that_is_refused_comes_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as refused:
        context_for(TlsMode.REQUIRED, tmp_path / "missing.pem")

    assert refused.value.hint


def test_a_context_stays_until_the_file_of_authorities_changes(tmp_path: Path) -> None:
    file, authority = tmp_path / "ca.pem", Certificates.make(tmp_path / "made").authority
    file.write_bytes(authority.read_bytes())
    first = context_for(TlsMode.REQUIRED, file)

    assert context_for(TlsMode.REQUIRED, file) is first
    file.write_text("garbage")
    with pytest.raises(InvalidSettings):
        context_for(TlsMode.REQUIRED, file)
    file.write_bytes(authority.read_bytes())
    assert context_for(TlsMode.REQUIRED, file) is not first
