"""Bodies of HTTP responses, read up to a bound: a peer chooses their length, and compression
lets few octets on the wire become many in memory."""

import json
from typing import Any

import aiohttp


class ResponseTooLarge(aiohttp.ClientPayloadError):
    """The body of a response has more octets than its reader takes."""


async def read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the decompressed body. Raises: ResponseTooLarge, which ends the connection;
    aiohttp.ClientError, OSError."""
    octets = bytearray()
    async for chunk in response.content.iter_any():
        octets += chunk
        if len(octets) > most:
            response.close()
            raise ResponseTooLarge(f"the response has more than {most} octets")
    return bytes(octets)


def parsed_json(body: bytes | str) -> Any:
    """Return the JSON value that a body is. Raises: ValueError, also where it nests too deeply."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the JSON value nests too deeply") from None
