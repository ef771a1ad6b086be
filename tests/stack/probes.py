"""Plain HTTP requests to servers of this machine, past any proxy that the environment names."""

import base64
import json
import urllib.request
from typing import Any

from stack import patience

SECONDS = 2.0
"""How long a server may take to answer."""

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def basic(user: str, password: str) -> str:
    """Return the authorization header of a user with a password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def http_answers(url: str) -> bool:
    """Tell whether a GET succeeds."""
    try:
        with _opener.open(url, timeout=patience.stretched(SECONDS)):
            return True
    except OSError:
        return False


def http_json(url: str, authorization: str) -> Any:  # whatever the server replies
    """Return the JSON that a GET returns; None when it fails or returns no JSON."""
    request = urllib.request.Request(url, headers={"Authorization": authorization})
    try:
        with _opener.open(request, timeout=patience.stretched(SECONDS)) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None
