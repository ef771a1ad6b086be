"""Fetches policies of MTA-STS by HTTPS.

The domain of a recipient chooses the server. So a fetch goes to addresses alone that mail could go
to, follows no redirect, and is bounded in size and time. Source: RFC 8461 3.3, 10.2.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from postroad import tls
from postroad.errors import InvalidInput, InvalidSettings, TlsRefused
from postroad.http_answers import AnswerTooLarge, read_body
from postroad.ports.delivery.resolver import Resolver
from postroad.routing.answers import Question
from postroad.routing.plans import AddressFamily
from postroad.routing.sts import StsPolicy

LARGEST_POLICY = 64 * 1024
TIMEOUT = timedelta(seconds=15)
"""Source: RFC 8461 3.3."""

MOST_FETCHES = 100
"""At the same time."""

Allow = Callable[[str], bool]
"""Whether a connection may go to an address."""


class PolicyNotFetched(InvalidInput):
    """A domain's policy could not be fetched, or is none."""


class PolicyFetcher:
    """Fetches policies. Needs a running event loop. `port` is 443 but for tests. Raises:
    InvalidSettings for authorities that cannot be read."""

    def __init__(
        self, resolver: Resolver, allow: Allow, ca_file: Path | None = None, port: int = 443
    ) -> None:
        try:
            self._context = tls.client_context(tls.ClientTls(ca_file))
        except TlsRefused as error:
            raise InvalidSettings(str(error), hint=error.hint) from error
        self._context.minimum_version = tls.OLDEST_TLS
        self._resolver, self._allow, self._port = resolver, allow, port
        self._slots = asyncio.Semaphore(MOST_FETCHES)

    async def fetch(self, domain: str) -> StsPolicy:
        """Fetch the policy of a domain. Raises: PolicyNotFetched, whose text has nothing that the
        server sent."""
        url = f"https://mta-sts.{domain}/.well-known/mta-sts.txt"
        try:
            async with self._slots, asyncio.timeout(TIMEOUT.total_seconds()):
                text = await self._get(url)
            return StsPolicy.parse(text)
        except TimeoutError:
            raise PolicyNotFetched(f"no answer in {TIMEOUT.total_seconds():g} s") from None
        except PolicyNotFetched:
            raise
        except AnswerTooLarge:
            raise PolicyNotFetched(f"it has more than {LARGEST_POLICY} octets") from None
        except (InvalidInput, UnicodeDecodeError) as error:
            raise PolicyNotFetched(f"it is no policy: {error}") from None
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            refused = tls.refusal("the server", str(error))
            raise PolicyNotFetched(str(refused or type(error).__name__)) from None

    async def _get(self, url: str) -> str:
        names = _Names(self._resolver, self._allow, self._port)
        connector = aiohttp.TCPConnector(
            resolver=names, ssl=self._context, force_close=True, use_dns_cache=False
        )
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise PolicyNotFetched(f"the server answered {response.status}")
            if response.content_type != "text/plain":
                raise PolicyNotFetched("the answer is not of the type text/plain")
            return (await read_body(response, LARGEST_POLICY)).decode()


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
