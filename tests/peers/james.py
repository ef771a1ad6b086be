"""Apache James: the server that keeps all in memory, from its published jars.

He relays mail for other domains, and keeps that for domains and users of his own in mailboxes, as
LMTP brings it, too; IMAP reads them. `Filling.java` queues mail for tests of his WebAdmin."""

from __future__ import annotations

import asyncio
import imaplib
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from peers.server import Peer, Road
from stack import cache, maven
from stack.cache import Entry
from stack.cassandra import java
from stack.errors import MissingRequirement
from support.ports import free_port

SOURCES = Path(__file__).parent / "james_server"
VERSION = "3.8.1"
PASSWORD = "opensesame"

PROCESSORS = """\
<mailetcontainer>
  <context><postmaster>postmaster@peer.example</postmaster></context>
  <spooler>
    <threads>8</threads>
    <errorRepository>memory://var/mail/error/</errorRepository>
  </spooler>
  <processors>
    <processor state="root">
      <mailet match="All" class="ToProcessor"><processor>transport</processor></mailet>
    </processor>
    <processor state="error">
      <mailet match="All" class="ToRepository">
        <repositoryPath>memory://var/mail/error/</repositoryPath>
      </mailet>
    </processor>
    <processor state="transport">
      <mailet match="All" class="RemoveMimeHeader"><name>bcc</name></mailet>
      <mailet match="RecipientIsLocal" class="LocalDelivery"/>
      {onward}
    </processor>
    <processor state="bounces">
      <mailet match="All" class="DSNBounce">
        <passThrough>false</passThrough>
        <attachment>heads</attachment>
      </mailet>
    </processor>
  </processors>
</mailetcontainer>
"""
ONWARD = """\
<mailet match="All" class="RemoteDelivery">
        <outgoingQueue>outgoing</outgoingQueue>
        <gateway>127.0.0.1</gateway>
        <gatewayPort>{road.next_port}</gatewayPort>
        <heloName>peer.example</heloName>
        <delayTime>100*{road.retry_seconds} sec</delayTime>
        <maxRetries>100</maxRetries>
        <deliveryThreads>{road.concurrency}</deliveryThreads>
        <sendpartial>true</sendpartial>
        <bounceProcessor>bounces</bounceProcessor>
        <startTLS>{starts_tls}</startTLS>
        <verifyServerIdentity>false</verifyServerIdentity>
      </mailet>"""
STAYS = '<mailet match="All" class="Null"/>'

SMTP = """\
<smtpservers><smtpserver enabled="true">
  <jmxName>smtp</jmxName>
  <bind>127.0.0.1:{port}</bind>
  <helloName autodetect="false">peer.example</helloName>
  {tls}
  <auth><announce>never</announce></auth>
  <authorizedAddresses>127.0.0.0/8</authorizedAddresses>
  <verifyIdentity>false</verifyIdentity>
  <maxmessagesize>{limit_kib}</maxmessagesize>
  <addressBracketsEnforcement>true</addressBracketsEnforcement>
  <handlerchain>
    <handler class="dev.postroad.tests.Refusing">
      <recipient>{road.refused}</recipient>
    </handler>
    <handler class="org.apache.james.smtpserver.fastfail.MaxRcptHandler">
      <maxRcpt>{road.most_recipients}</maxRcpt>
    </handler>
    <handler class="org.apache.james.smtpserver.CoreCmdHandlerLoader"/>
  </handlerchain>
</smtpserver></smtpservers>
"""
LMTP = """\
<lmtpservers><lmtpserver enabled="true">
  <jmxName>lmtp</jmxName>
  <bind>127.0.0.1:{lmtp_port}</bind>
  <maxmessagesize>{limit_kib}</maxmessagesize>
  <handlerchain>
    <handler class="dev.postroad.tests.Refusing">
      <recipient>{road.refused}</recipient>
    </handler>
    <handler class="org.apache.james.lmtpserver.CoreCmdHandlerLoader"/>
  </handlerchain>
</lmtpserver></lmtpservers>
"""
IMAP = """\
<imapservers><imapserver enabled="true">
  <jmxName>imap</jmxName>
  <bind>127.0.0.1:{imap_port}</bind>
  <plainAuthDisallowed>false</plainAuthDisallowed>
  <auth><plainAuthEnabled>true</plainAuthEnabled></auth>
</imapserver></imapservers>
"""
TLS = """\
<tls socketTLS="false" startTLS="true">
    <privateKey>file://{key}</privateKey>
    <certificates>file://{chain}</certificates>
  </tls>"""
PLAIN = '<tls socketTLS="false" startTLS="false"/>'

REST = {
    "webadmin.properties": (
        "enabled=true\nport={web_port}\nhost=127.0.0.1\nhttps.enabled=false\n"
        "extensions.routes=dev.postroad.tests.Filling\n"
    ),
    "jmap.properties": "enabled=false\n",
    "jmx.properties": "jmx.enabled=false\n",
    "pop3server.xml": '<pop3servers><pop3server enabled="false"/></pop3servers>',
    "managesieveserver.xml": (
        '<managesieveservers><managesieveserver enabled="false"/></managesieveservers>'
    ),
    "domainlist.xml": (
        "<domainlist><autodetect>false</autodetect><autodetectIP>false</autodetectIP>"
        "<defaultDomain>peer.example</defaultDomain></domainlist>"
    ),
    "usersrepository.xml": (
        "<usersrepository><algorithm>SHA-512</algorithm>"
        "<enableVirtualHosting>true</enableVirtualHosting></usersrepository>"
    ),
    "mailrepositorystore.xml": (
        "<mailrepositorystore><defaultProtocol>memory</defaultProtocol><mailrepositories>"
        '<mailrepository class="org.apache.james.mailrepository.memory.MemoryMailRepository">'
        "<protocols><protocol>memory</protocol></protocols></mailrepository>"
        "</mailrepositories></mailrepositorystore>"
    ),
    "dnsservice.xml": (
        "<dnsservice><autodiscover>false</autodiscover><authoritative>false</authoritative>"
        "<servers><server>127.0.0.1</server></servers></dnsservice>"
    ),
    "recipientrewritetable.xml": (
        "<recipientrewritetable><recursiveMapping>false</recursiveMapping></recipientrewritetable>"
    ),
    "logback.xml": (
        '<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>'
        "<pattern>%d %level %logger{{20}} %msg%n%ex{{8}}</pattern></encoder></appender>"
        '<root level="WARN"><appender-ref ref="out"/></root></configuration>'
    ),
}


class James(Peer):
    """A James who relays mail, and keeps that of his own `domains` and users. `relays`: False lets
    him drop the rest, and no consumer is at his queue `outgoing`."""

    name = "James"
    ready_seconds = 600.0  # a JVM that loads 300 jars on a busy machine
    relays = True

    def __init__(self, base: Path, road: Road) -> None:
        super().__init__(base, road)
        self.smtp_port, self.lmtp_port = self.port, free_port()
        self.imap_port, self.web_port = free_port(), free_port()

    def entries(self) -> Sequence[Entry]:
        return (_jars(), _classes())

    def version(self) -> str:
        return VERSION

    def configure(self) -> None:
        conf = self.base / "conf"
        conf.mkdir(exist_ok=True)
        is_secured = self.road.certificates is not None
        onward = ONWARD.format(road=self.road, starts_tls="true" if self.road.secures else "false")
        values = {
            "road": self.road,
            "port": self.smtp_port,
            "lmtp_port": self.lmtp_port,
            "imap_port": self.imap_port,
            "web_port": self.web_port,
            "limit_kib": self.road.limit_bytes // 1024,
            "tls": TLS.format(key=self.key, chain=self.chain) if is_secured else PLAIN,
            "onward": onward if self.relays else STAYS,
        }
        files = {
            "mailetcontainer.xml": PROCESSORS,
            "smtpserver.xml": SMTP,
            "lmtpserver.xml": LMTP,
            "imapserver.xml": IMAP,
            **REST,
        }
        for name, text in files.items():
            (conf / name).write_text(text.format(**values))
        if is_secured:
            words = (*("-importcert", "-noprompt", "-alias", "authority"), "-file", self.authority)
            store = ("-keystore", self.base / "trust.p12", "-storepass", PASSWORD)
            keytool = java().with_name("keytool")
            subprocess.run([keytool, *words, *store], check=True, capture_output=True)

    def command(self) -> Sequence[str | Path]:
        jars, classes = (each.path for each in self.entries())
        property_ = "-Djavax.net.ssl.trustStore"
        trust = (f"{property_}={self.base}/trust.p12", f"{property_}Password={PASSWORD}")
        return (
            *(java(), "-Xmx768m", f"-Dworking.directory={self.base}"),
            *(trust if self.road.certificates is not None else ()),
            f"-Dlogback.configurationFile={self.base}/conf/logback.xml",
            *("-cp", f"{classes}:{jars}/*", "org.apache.james.MemoryJamesServerMain"),
        )

    async def start(self, *before: str | Path) -> None:
        """Start him, and wait for his WebAdmin, too, which begins last."""
        await super().start(*before)
        async with asyncio.timeout(self.ready_seconds):
            while not await self._answers():
                await asyncio.sleep(0.1)

    async def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            async with httpx.AsyncClient(base_url=self.web) as client:
                await client.get("/healthcheck")
                return True
        return False

    @property
    def web(self) -> str:
        """The address of his WebAdmin."""
        return f"http://127.0.0.1:{self.web_port}"

    async def know(self, users: Sequence[str]) -> None:
        """Make mailboxes of these users, and their domains."""
        async with httpx.AsyncClient(base_url=self.web) as client:
            for domain in {each.rpartition("@")[2] for each in users}:
                (await client.put(f"/domains/{domain}")).raise_for_status()
            for user in users:
                answer = await client.put(f"/users/{user}", json={"password": PASSWORD})
                answer.raise_for_status()

    def mails(self, users: Sequence[str]) -> dict[str, list[bytes]]:
        """Return the mails in the mailboxes of users, as IMAP has them."""
        found = {}
        for user in users:
            with imaplib.IMAP4("127.0.0.1", self.imap_port) as client:
                client.login(user, PASSWORD)
                client.select()
                _, [numbers] = client.search(None, "ALL")
                parts = [client.fetch(each, "(BODY.PEEK[])")[1] for each in numbers.split()]
            found[user] = [bytes(each[0][1]) for each in parts if isinstance(each[0], tuple)]
        return found


class JamesMailboxes(James):
    """The same James, who keeps mail that comes by LMTP."""

    name = "James (LMTP)"
    relays = False

    def __init__(self, base: Path, road: Road) -> None:
        super().__init__(base, road)
        self.port = self.lmtp_port


def _jars() -> Entry:
    return Entry(
        "james-server",
        cache.key_of(SOURCES / "pom.xml"),
        f"James {VERSION}: download (about a minute)",
        lambda folder, log: maven.copy_jars(SOURCES / "pom.xml", folder, log),
    )


def _classes() -> Entry:
    jars = _jars()

    def make(folder: Path, log: Path) -> None:
        compiler = java().with_name("javac")
        if not compiler.exists():
            raise MissingRequirement("James' routes for tests need package openjdk-17-jdk-headless")
        sources = sorted(SOURCES.glob("*.java"))
        cache.run([compiler, "-cp", f"{jars.path}/*", "-d", folder, *sources], log)

    return Entry("james-server-classes", cache.key_of(SOURCES), "James: compile routes", make)
