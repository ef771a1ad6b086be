"""Documents from templates. What stands in mail is escaped, and characters that are not seen, or
that change the direction of text, are shown by their numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from postroad.console.page.texts import TEXTS, refused_title

HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories of characters that are shown by their numbers."""

MAX_SHOWN = 500
"""Characters of a text from mail that are shown."""


def shown(text: object) -> Markup:
    """Return a text from mail as HTML, isolated from the text around it."""
    given = str(text)
    parts = [_shown_character(each) for each in given[:MAX_SHOWN]]
    more = Markup("…") if len(given) > MAX_SHOWN else Markup("")
    return Markup("<bdi>{}{}</bdi>").format(Markup("").join(parts), more)


def _shown_character(character: str) -> Markup:
    if unicodedata.category(character) not in HIDDEN:
        return escape(character)
    return Markup('<span class="hidden-character">U+{:04X}</span>').format(ord(character))


def domain(name: object) -> Markup:
    """Return a domain from mail, which breaks between its labels where it does not fit."""
    return shown(name).replace(".", Markup(".<wbr>"))


def moment(text: object) -> Markup:
    """Return an instant; a script adds the reader's own time."""
    if text is None:
        return Markup("–")
    at = datetime.fromisoformat(str(text)).astimezone(UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        at.isoformat(timespec="seconds"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def octets(number: int) -> str:
    """Return a size for people."""
    size, unit = float(number), "B"
    for each in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, each
    return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"


def age(text: object) -> str:
    """Return how long ago an instant is, in its largest unit."""
    seconds = (datetime.now(UTC) - datetime.fromisoformat(str(text))).total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def rate(per_second: float | None) -> str:
    """Return a rate for people, by the second or, of a slow one, by the minute."""
    if per_second is None:
        return "–"
    if per_second and per_second < 1:
        return f"{60 * per_second:.2g}/min"
    return f"{per_second:,.0f}/s" if per_second >= 10 else f"{per_second:.2g}/s"


def points(sizes: Sequence[int]) -> str:
    """Return the points of a line of 120 by 20 units, the highest at the top."""
    most, steps = max(1, *sizes), len(sizes) - 1
    return " ".join(
        f"{120 * at / steps:.1f},{21 - 20 * size / most:.1f}" for at, size in enumerate(sizes)
    )


def query(*fields: tuple[str, Any]) -> str:
    """Return a query of the fields that are given, with its question mark."""
    given = [(name, value) for name, value in fields if value not in (None, "")]
    return f"?{urlencode(given)}" if given else ""


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("postroad.console.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"shown": shown, "moment": moment, "octets": octets, "age": age}
    made.filters["domain"] = domain
    made.filters |= {"rate": rate, "points": points}
    made.filters |= {"number": lambda value: "–" if value is None else f"{value:,}"}
    made.globals |= {"t": TEXTS, "query": query}
    return made


def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a response. Its links send no referrer elsewhere; to the console itself they do,
    because a browser's form sends `Origin: null` otherwise (Fetch 3.1)."""
    text = _environment().get_template(f"{template}.html").render(**values)
    return HTMLResponse(text, status, headers={"Referrer-Policy": "same-origin"})


def refusal(
    status: int, detail: str, *, asks_for_a_token: bool = False, path: str | None = None
) -> HTMLResponse:
    """Return the page of a request that is refused. `path`: where a login at an issuer leads back
    to; None: there is no issuer."""
    asked = {"asks_for_a_token": asks_for_a_token, "path": path}
    return render("refusal", status, title=refused_title(status), detail=detail, **asked)
