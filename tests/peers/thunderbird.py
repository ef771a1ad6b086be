"""Debian's Thunderbird, without a window: Marionette lets it send mail by its own SMTP client."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from asyncio.subprocess import STDOUT
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peers.server import APART, SUITE, end, inside
from stack import debian
from stack.cache import Entry
from stack.progress import Progress
from support.ports import free_port

MINIMUM = "1:128"
START_SECONDS = 120.0
SECURED = {"STARTTLS": 2, "TLS": 3}
"""`try_ssl` of its servers."""

SEND = """\
const [certificate, mail, done] = arguments;
(async () => {
  const { MailServices } = ChromeUtils.importESModule("resource:///modules/MailServices.sys.mjs");
  Cc["@mozilla.org/security/x509certdb;1"].getService(Ci.nsIX509CertDB)
    .addCertFromBase64(certificate, "CT,C,C");
  const place = "smtp://localhost";
  const login = Cc["@mozilla.org/login-manager/loginInfo;1"].createInstance(Ci.nsILoginInfo);
  login.init(place, null, place, mail.user, mail.password, "", "");
  await Services.logins.addLoginAsync(login);
  const fields = Cc["@mozilla.org/messengercompose/composefields;1"]
    .createInstance(Ci.nsIMsgCompFields);
  for (const name of ["from", "to", "bcc", "subject", "DSN"]) fields[name] = mail[name];
  const identity = MailServices.accounts.getIdentity("id1");
  const ended = await new Promise((resolve) => {
    const listener = {
      QueryInterface: ChromeUtils.generateQI(["nsIMsgSendListener"]),
      onStartSending() {}, onProgress() {}, onStatus() {}, onGetDraftFolderURI() {},
      onSendNotPerformed() { resolve("not performed"); },
      onTransportSecurityError(id, status) { resolve(`security: ${status}`); },
      onStopSending(id, status) { resolve(status === 0 ? "" : `status ${status}`); },
    };
    Cc["@mozilla.org/messengercompose/send;1"].createInstance(Ci.nsIMsgSend).createAndSendMessage(
      null, identity, "account1", fields, false, false, Ci.nsIMsgSend.nsMsgDeliverNow, null,
      "text/plain", mail.body, null, null, listener, "", "", Ci.nsIMsgCompType.New,
    );
  });
  done(ended);
})().catch((error) => done(`${error} ${error.stack}`));
"""


def installed() -> Entry:
    """Return the entry of the cache. Raises, by its methods: StackError."""
    return debian.installed("thunderbird", SUITE, MINIMUM)


def version() -> str:
    return debian.version(installed().path / "root", "thunderbird")


async def send(
    folder: Path, port: int, authority: Path, mail: Mapping[str, str | bool], secured: str
) -> str:
    """Send a mail through a server on `localhost`; return what failed, or an empty text. `mail`:
    user, password, from, to, bcc, subject, DSN, body."""
    control, profile = free_port(), folder / "profile"
    profile.mkdir()
    (profile / "user.js").write_text(_preferences(control, port, str(mail["user"]), secured, mail))
    script = (
        f"export HOME={folder}; exec thunderbird --headless --marionette"
        f" --remote-allow-system-access --no-remote --profile {profile}"
    )
    installed().ensure(Progress())
    log = folder / "thunderbird.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *map(str, (*APART, *inside(installed().path / "root", folder, script))),
            stdout=stream, stderr=STDOUT,
        )  # fmt: skip
    try:
        async with asyncio.timeout(START_SECONDS):
            return await _ask(control, authority, mail)
    except (TimeoutError, OSError, EOFError) as error:
        raise RuntimeError(f"{error!r}: {log.read_text(errors='replace')[-2000:]}") from error
    finally:
        await end(process)


async def _ask(port: int, authority: Path, mail: Mapping[str, str | bool]) -> str:
    certificate = base64.b64encode(ssl.PEM_cert_to_DER_cert(authority.read_text())).decode()
    reader, writer = await _connected(port)
    await _packet(reader)  # its greeting
    steps: tuple[tuple[str, dict[str, Any]], ...] = (
        (
            "WebDriver:NewSession",
            {"capabilities": {"alwaysMatch": {"timeouts": {"script": 60000}}}},
        ),
        ("Marionette:SetContext", {"value": "chrome"}),
        (
            "WebDriver:ExecuteAsyncScript",
            {"script": SEND, "args": [certificate, dict(mail)], "sandbox": "system"},
        ),
    )
    found: Any = None
    for number, (command, parameters) in enumerate(steps):
        text = json.dumps([0, number, command, parameters])
        writer.write(f"{len(text)}:{text}".encode())
        _, _, error, found = await _packet(reader)
        if error is not None:
            return json.dumps(error)
    writer.close()
    return str(found["value"])


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)


async def _packet(reader: asyncio.StreamReader) -> Any:
    length = (await reader.readuntil(b":"))[:-1]
    return json.loads(await reader.readexactly(int(length)))


def _preferences(
    control: int, port: int, user: str, secured: str, mail: Mapping[str, str | bool]
) -> str:
    """Return its preferences: one account without a mailbox, whose identity sends by the server."""
    server, identity = "mail.smtpserver.smtp1", "mail.identity.id1"
    values: dict[str, str | int | bool] = {
        "marionette.port": control,
        "mail.provider.suppress_dialog_on_startup": True,
        "mail.spotlight.firstRunDone": True,
        "mail.winsearch.firstRunDone": True,
        "app.update.enabled": False,
        "datareporting.policy.dataSubmissionEnabled": False,
        "mail.accountmanager.accounts": "account1",
        "mail.accountmanager.defaultaccount": "account1",
        "mail.account.account1.server": "server1",
        "mail.account.account1.identities": "id1",
        "mail.server.server1.type": "none",
        "mail.server.server1.hostname": "Local Folders",
        "mail.server.server1.userName": "local",
        "mail.smtpservers": "smtp1",
        "mail.smtp.defaultserver": "smtp1",
        f"{server}.hostname": "localhost",
        f"{server}.port": port,
        f"{server}.try_ssl": SECURED[secured],
        f"{server}.authMethod": 3,
        f"{server}.username": user,
        f"{identity}.fullName": "A. Sender",
        f"{identity}.useremail": str(mail["from"]),
        f"{identity}.smtpServer": "smtp1",
        f"{identity}.fcc": False,
        f"{identity}.valid": True,
    }
    return "".join(
        f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in values.items()
    )
