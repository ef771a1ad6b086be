"""Finds the policy that holds for a domain: from what is kept, else from DNS and by HTTPS.

Source: RFC 8461 3.1, 3.3, 5.1; ADR 0059.

Fetches policies of MTA-STS by HTTPS.

The domain of a recipient chooses the server. So a fetch goes to addresses alone that mail could go
to, follows no redirect, and is bounded in size and time. Source: RFC 8461 3.3, 10.2.

Keeps policies in a folder, a file for each domain, so that they survive a restart.

Without that, each restart would be a moment at which an attacker on the way can hide that there is
a policy. Files are replaced whole; one that cannot be read counts as absent. Processes may share a
folder: each has read it when it started."""

import asyncio
import json
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from postroad import tls
from postroad.domain.values.instants import instant, microseconds
from postroad.errors import InvalidInput, InvalidSettings, TlsRefused
from postroad.http_responses import ResponseTooLarge, read_body
from postroad.ports.clock import Clock
from postroad.ports.delivery import Resolver
from postroad.routing.answers import Question, RecordType
from postroad.routing.routes import AddressFamily
from postroad.routing.securing import DomainPolicy, KeptPolicy, StsMode, StsPolicy, record_id
from postroad.telemetry.logs import logger
from postroad.telemetry.metrics import STS_FETCHES

MAX_POLICY = 64 * 1024
TIMEOUT = timedelta(seconds=15)
"""Source: RFC 8461 3.3."""

MAX_FETCHES = 100
"""At the same time."""

Allow = Callable[[str], bool]
"""True if a connection may go to an address."""


class PolicyNotFetched(InvalidInput):
    """A domain's policy could not be fetched, or is none."""


class PolicyFetcher:
    """Fetches policies. Needs a running event loop. `port` is 443 but for tests. Raises:
    InvalidSettings for authorities that cannot be read."""

    def __init__(
        self, resolver: Resolver, allow: Allow, ca_file: Path | None = None, port: int = 443
    ) -> None:
        self._ca_file = ca_file
        try:
            tls.verifying_context(ca_file)
        except TlsRefused as error:
            raise InvalidSettings(str(error), hint=error.hint) from error
        self._resolver, self._allow, self._port = resolver, allow, port
        self._slots = asyncio.Semaphore(MAX_FETCHES)

    async def fetch(self, domain: str) -> StsPolicy:
        """Fetch the policy of a domain. Raises: PolicyNotFetched, without text of the server."""
        url = f"https://mta-sts.{domain}/.well-known/mta-sts.txt"
        try:
            async with self._slots, asyncio.timeout(TIMEOUT.total_seconds()):
                text = await self._get(url)
            return StsPolicy.parse(text)
        except TimeoutError:
            raise PolicyNotFetched(f"no answer in {TIMEOUT.total_seconds():g} s") from None
        except PolicyNotFetched:
            raise
        except ResponseTooLarge:
            raise PolicyNotFetched(f"it has more than {MAX_POLICY} octets") from None
        except (InvalidInput, UnicodeDecodeError) as error:
            raise PolicyNotFetched(f"it is no policy: {error}") from None
        except TlsRefused as error:  # of authorities that changed
            raise PolicyNotFetched(error.explain()) from None
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            refused = tls.refusal("the server", str(error))
            raise PolicyNotFetched(str(refused or type(error).__name__)) from None

    async def _get(self, url: str) -> str:
        names = _Names(self._resolver, self._allow, self._port)
        connector = aiohttp.TCPConnector(
            resolver=names,
            ssl=tls.verifying_context(self._ca_file),
            force_close=True,
            use_dns_cache=False,
        )
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise PolicyNotFetched(f"the server answered {response.status}")
            if response.content_type != "text/plain":
                raise PolicyNotFetched("the answer is not of the type text/plain")
            return (await read_body(response, MAX_POLICY)).decode()


class _Names(AbstractResolver):
    """Looks up names as routing does: absolute, and without addresses that mail may not go to."""

    def __init__(self, resolver: Resolver, allow: Allow, port: int) -> None:
        self._resolver, self._allow, self._port = resolver, allow, port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        questions = [Question(host, each.record_type) for each in AddressFamily]
        answers = await self._resolver.look_up(*questions)
        addresses = [each for answer in answers for each in answer.addresses]
        found = [self._result(host, each) for each in addresses if self._allow(each)]
        if not found:
            raise OSError("no address that may be used")
        return found

    def _result(self, host: str, address: str) -> ResolveResult:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return ResolveResult(
            hostname=host,
            host=address,
            port=self._port,
            family=family,
            proto=0,
            flags=socket.AI_NUMERICHOST,
        )

    async def close(self) -> None:
        """Nothing is open."""


_log = logger("mta_sts")

SUFFIX = ".sts.json"

MAX_FILES = 10_000
"""Domains whose policies are kept on disk."""


class PolicyFolder:
    """A folder of policies, created where missing. Raises: InvalidSettings where unusable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = folder / f".{uuid4().hex}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InvalidSettings(
                f"the folder of MTA-STS policies {folder} cannot be used: {error.strerror}",
                hint="name a folder that this process may write to",
            ) from error

    def read(self, now: datetime) -> dict[str, KeptPolicy]:
        """Return the policies by domain, and delete those that are over. Blocks."""
        found: dict[str, KeptPolicy] = {}
        for path in self._folder.glob(f"*{SUFFIX}"):
            try:
                domain, kept = _read(json.loads(path.read_text()))
                if path.name != _name_of(domain) or kept.is_over(now):
                    path.unlink(missing_ok=True)
                elif len(found) < MAX_FILES:
                    found[domain] = kept
            except (OSError, ArithmeticError, ValueError, TypeError, KeyError) as error:
                _log.warning("policy not read", path=str(path), error=type(error).__name__)
        return found

    def write(self, domain: str, kept: KeptPolicy) -> None:
        """Write a policy; it is there whole or not at all after a crash. Blocks; an error is
        logged, because mail does not depend on it."""
        path = self._folder / _name_of(domain)
        part = self._folder / f".{uuid4().hex}"
        try:
            with part.open("w") as file:
                file.write(json.dumps(_written(domain, kept)))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            _log.warning("policy not written", path=str(path), error=str(error.strerror))

    def delete(self, domains: Iterable[str]) -> None:
        """Delete the policies of domains: a stranger's names could fill the disk. Blocks; an error
        is logged."""
        for domain in domains:
            path = self._folder / _name_of(domain)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("policy not deleted", path=str(path), error=str(error.strerror))


def _name_of(domain: str) -> str:
    """The hash, because a domain may be longer than the name of a file."""
    return sha256(domain.encode()).hexdigest()[:40] + SUFFIX


def _written(domain: str, kept: KeptPolicy) -> dict[str, Any]:
    return {
        "domain": domain,
        "id": kept.id,
        "fetched_us": microseconds(kept.fetched_at),
        "mode": kept.policy.mode.value,
        "mx": list(kept.policy.exchangers),
        "max_age_s": int(kept.policy.max_age.total_seconds()),
    }


def _read(stored: dict[str, Any]) -> tuple[str, KeptPolicy]:
    policy = StsPolicy(
        StsMode(stored["mode"]),
        tuple(map(str, stored["mx"])),
        timedelta(seconds=int(stored["max_age_s"])),
    )
    return str(stored["domain"]), KeptPolicy(
        str(stored["id"]), policy, instant(int(stored["fetched_us"]))
    )


MAX_DOMAINS = MAX_FILES
"""Whose policies, or failures to fetch one, are in memory; those go first that were looked up
longest ago."""

PAUSE = timedelta(minutes=5)
"""After a fetch that failed, for the same record. Source: RFC 8461 3.3."""

Fetch = Callable[[str], Awaitable[StsPolicy]]
"""Fetches the policy of a domain. Raises: PolicyNotFetched."""


class FetchedPolicies:
    """The port `StsPolicies`. `folder`: where policies survive a restart; None: nowhere. Needs a
    running event loop."""

    def __init__(
        self, resolver: Resolver, fetch: Fetch, clock: Clock, folder: PolicyFolder | None = None
    ) -> None:
        self._resolver, self._fetch, self._clock, self._folder = resolver, fetch, clock, folder
        self._kept: OrderedDict[str, KeptPolicy] = OrderedDict()
        self._failed: OrderedDict[str, tuple[str, timedelta, str]] = OrderedDict()
        """Domain → the id of its record when a fetch failed, when the next one may begin by the
        clock's elapsed time, and why."""
        self._looking: dict[str, asyncio.Task[DomainPolicy]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def find(self, domain: str) -> DomainPolicy:
        """Return the policy of a domain (see the port)."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        await asyncio.shield(self._reading)
        task = self._looking.get(domain)
        if task is None:
            task = self._looking[domain] = asyncio.create_task(self._find(domain))
            task.add_done_callback(lambda _: self._looking.pop(domain, None))
        return await asyncio.shield(task)

    async def _read(self) -> None:
        if self._folder is not None:
            found = await asyncio.to_thread(self._folder.read, self._clock.now())
            self._kept.update(found)

    async def _find(self, domain: str) -> DomainPolicy:
        (answer,) = await self._resolver.look_up(Question(f"_mta-sts.{domain}", RecordType.TXT))
        record = record_id(answer.texts)
        kept = self._valid(domain)
        if record is None and kept is None:
            return DomainPolicy(None, answer.reason or "no record")
        if kept is not None and not kept.is_to_be_fetched(record, self._clock.now()):
            return self._known(kept, "kept")
        assert record is not None
        failure = await self._refresh(domain, record)
        kept = self._valid(domain)
        if kept is None:
            return DomainPolicy(None, f"none: {failure}")
        return self._known(kept, f"kept: {failure}" if failure else "fetched")

    def _valid(self, domain: str) -> KeptPolicy | None:
        kept = self._kept.get(domain)
        if kept is not None and kept.is_over(self._clock.now()):
            del self._kept[domain]
            return None
        if kept is not None:
            self._kept.move_to_end(domain)
        return kept

    async def _refresh(self, domain: str, record: str) -> str:
        """Fetch the policy; return why that failed, empty where it did not."""
        failed = self._failed.get(domain)
        if failed is not None and failed[0] == record and self._clock.elapsed() < failed[1]:
            return failed[2]
        try:
            policy = await self._fetch(domain)
        except PolicyNotFetched as error:
            STS_FETCHES.labels("failed").inc()
            self._failed[domain] = record, self._clock.elapsed() + PAUSE, str(error)
            _shorten(self._failed)
            return str(error)
        STS_FETCHES.labels("fetched").inc()
        self._failed.pop(domain, None)
        kept = self._kept[domain] = KeptPolicy(record, policy, self._clock.now())
        self._kept.move_to_end(domain)
        forgotten = _shorten(self._kept)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.write, domain, kept)
            await asyncio.to_thread(self._folder.delete, forgotten)
        return ""

    @staticmethod
    def _known(kept: KeptPolicy, why: str) -> DomainPolicy:
        hosts = ", ".join(kept.policy.exchangers)
        return DomainPolicy(kept.policy, f"{kept.policy.mode} ({why}): {hosts}")


def _shorten(entries: OrderedDict[str, Any]) -> list[str]:
    """Forget what is beyond the bound; return its domains."""
    return [entries.popitem(last=False)[0] for _ in range(len(entries) - MAX_DOMAINS)]
