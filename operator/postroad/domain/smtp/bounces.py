"""Why a next hop did not take a mail: the class of its reply, and its words without what names a
person, a host or a mail. Pure, but for its table, which is read once from `bounce_rules.yaml`.

The first row of the table that fits decides, after what another server quotes and what a program
writes before each refusal was cut off: rows of single sites, words that an enhanced code does not
outweigh, enhanced codes that name one reason, words, then what is left of the codes. A reply is
read once and its class is stored with the attempt: a later reader counts classes, not texts.
Source: RFC 3463 3; RFC 7372; ADR 0033; ADR 0079."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from postroad.domain.values.text import BY_API_NAME

MAX_WORDS = 100
"""Characters that are kept of a reply's words."""

MAX_READ = 500
"""Characters of a text that are looked at: as many as a relay's outcomes have."""


class BounceClass(StrEnum):
    """The reason of a refusal. The values are stored."""

    NO_MAILBOX = "no-mailbox"
    NO_DOMAIN = "no-domain"
    MAILBOX_FULL = "mailbox-full"
    MAILBOX_UNAVAILABLE = "mailbox-unavailable"
    TOO_LARGE = "too-large"
    SENDER = "sender"
    RELAYING = "relaying"
    AUTHENTICATION = "authentication"
    BLOCKED = "blocked"
    CONTENT = "content"
    POLICY = "policy"
    GREYLISTED = "greylisted"
    RATE = "rate"
    SECURITY = "security"
    UNREACHABLE = "unreachable"
    SYSTEM = "system"
    LOOP = "loop"
    PROTOCOL = "protocol"
    SUPPRESSED = "suppressed"
    OTHER = "other"

    @classmethod
    def known(cls, value: str) -> BounceClass:
        """Return the class of a stored value; `OTHER` for one of a later release."""
        try:
            return cls(value)
        except ValueError:
            return cls.OTHER


class Bounce(NamedTuple):
    """A reply as it is counted. `code` is the basic code, 0 where the text has none."""

    code: int
    reason: BounceClass
    words: str


MAX_GAPS = 2
"""Of a phrase: with each, a text that fits nowhere takes longer to read."""

Code = Annotated[str, Field(max_length=9, pattern=r"^([245]\d\d|[x245]\.\d{1,3}\.(\d{1,3}|\*))$")]
Phrase = Annotated[str, Field(min_length=3, max_length=300)]


class BounceRule(BaseModel):
    """A row of the table: refusals that have one of its codes and one of its phrases, as far as it
    names such, are of its class."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, alias_generator=str)

    reason: Annotated[BounceClass, BY_API_NAME, Field(alias="class")]
    """Class that the refusals are counted as."""

    codes: Annotated[tuple[Code, ...], Field(max_length=50)] = ()
    """Basic codes (550) and enhanced ones: 5.1.1, x.1.1 (4.1.1 too), x.1.* (each detail)."""

    words: Annotated[tuple[Phrase, ...], Field(max_length=50)] = ()
    """Phrases of the reply, in any case: whole words, (one|another) of several, block* with any
    end, ` + ` for one word or none between, ` * ` for up to 40 characters, ^ for the beginning.
    Addresses, hosts, quoted names and numbers stand there as `postroad bounce classify` prints
    them: <address>, <host>, <name>, #."""

    source: Annotated[str, Field(min_length=1, max_length=300)]
    """The page or RFC where this is documented."""

    @model_validator(mode="after")
    def _is_readable(self) -> BounceRule:
        if not (self.codes or self.words):
            raise ValueError("name codes, words or both")
        for each in self.words:
            if each.count(" * ") > MAX_GAPS:
                raise ValueError(f"{each!r} has more than {MAX_GAPS} gaps: write two rows")
            if not _BALANCED.fullmatch(each):
                raise ValueError(f"{each!r}: write one of several words as (one|another)")
        return self

    @cached_property
    def _expressions(self) -> tuple[_Expression, ...]:
        return tuple(map(_expression, self.words))

    def fits(self, codes: frozenset[str], words: str) -> bool:
        """Return whether a reply with these codes and lower-case words is of this class."""
        if self.codes and codes.isdisjoint(self.codes):
            return False
        return not self.words or any(each.fits(words) for each in self._expressions)

    def evidence(self, text: str) -> list[str]:
        """Return the codes and the phrases of this row that a refusal has."""
        codes, words = _read(_plain(text))
        phrases = zip(self.words, self._expressions, strict=True)
        found = [phrase for phrase, expression in phrases if expression.fits(words)]
        return [*(each for each in self.codes if each in codes), *found]


class Wrapper(BaseModel):
    """Words that a program writes before the reason of a refusal, and what stands for them when it
    is looked for: nothing, or what the refusal is about."""

    words: Phrase
    becomes: str = ""
    source: str


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quotations: tuple[str, ...]
    """Prefix that stands before the reply of another server."""

    wrappers: tuple[Wrapper, ...]
    rules: tuple[BounceRule, ...]


_own: list[BounceRule] = []
"""The rows of an administrator, which come before those of the table."""


def use_rules(rules: Sequence[BounceRule]) -> None:
    """Let these rows decide before those of the table, in the whole process."""
    _own[:] = rules


_PIECES = re.compile(r"( \* | \+ |[()|*])")
_PARTS = re.compile(r"(\([^()]*\))|\*| \+ ")
_WRITTEN = {
    "(": "(?:",
    ")": ")",
    "|": "|",
    "*": r"\w{0,20}",
    " * ": r"(?!\w).{0,40}?(?<!\w)",
    " + ": r"(?: (?:<\w+>:?|[^\s:;,]{1,64}))? ",
}


_BALANCED = re.compile(r"(?:[^()|]|\([^()]*\))+")
"""Alternatives stand in brackets, and brackets in none."""


class _Expression(NamedTuple):
    """A phrase as it is looked for: in a lower-case text that has one of each `needed`, which is
    seen much faster."""

    needed: tuple[tuple[str, ...], ...]
    pattern: re.Pattern[str]

    def fits(self, words: str) -> bool:
        is_likely = all(any(one in words for one in several) for several in self.needed)
        return is_likely and self.pattern.search(words) is not None


@cache
def _expression(phrase: str) -> _Expression:
    phrase = phrase.lower()
    begin = r"\A" if phrase.startswith("^") else r"(?<!\w)"
    phrase = phrase.removeprefix("^")
    text = "".join(_WRITTEN.get(each) or re.escape(each) for each in _PIECES.split(phrase))
    parts = (each.strip("()").split("|") for each in _PARTS.split(phrase) if each)
    needed = (tuple(each.partition("*")[0].strip() for each in part) for part in parts)
    return _Expression(
        tuple(each for each in needed if all(each)), re.compile(rf"{begin}{text}(?!\w)")
    )


@cache
def _table() -> _Table:
    text = (resources.files("postroad.domain") / "bounce_rules.yaml").read_text("utf-8")
    found: Any = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return _Table.model_validate(found)


@cache
def _quoted() -> re.Pattern[str]:
    before = "|".join(map(re.escape, _table().quotations))
    return re.compile(rf"(?:{before}) ?(?=[245]\d\d[ -])", re.IGNORECASE)


_OF_SENDER = re.compile(r"\bsender|\bmail from|\b(?:return|reverse).path", re.IGNORECASE)

_CODES = re.compile(
    r"(?:([2-5]\d\d)(?![^\s;'-]))?[ ;'-]*(?:[2-5]\d\d[ -]+)?(?:cuda_\w+ )?"
    r"(?:[(#]*([245])\.(\d{1,3})\.(\d{1,3})(?![.\d]))?"
)
"""Matches the beginning of any text, with nothing in its groups where there is no code."""

_LATER_CODE = re.compile(r"\(?#([245])\.(\d{1,3})\.(\d{1,3})(?![.\d])")
"""An enhanced code behind the words, as qmail writes it."""

_MARKS = re.compile(r"\A(?:<\w+>|[\s:.,;#()\[\]=-])+")

_ENCLOSED = re.compile(
    r"(?P<address><[^<>]*>|\"[^\"]*\"@\S+)"
    r"|(?P<name>(?<!\w)'[^']*'(?!\w)|\"[^\"]*\")"
    r"|(?P<host>\[[^\[\]]*\])"
)
_DOTTED = re.compile(r"\w\.\w")
_DIGIT = re.compile(r"\d")
_REASON_BEHIND = re.compile(r"@[\w.-]+(:[A-Za-z]+\)?)\Z")
"""As Barracuda writes it: (user@example.net:blocked)."""


def bounce_of(text: str, addresses: Iterable[str | None] = ()) -> Bounce:
    """Return how a refusal is counted, by the text of its outcome. `addresses` are those that the
    next hop may have quoted.

    >>> bounce_of("550 5.1.1 <b@example.net>: no such user on mx7.example.net").words
    '<address>: no such user on <host>'
    """
    return decided(text, addresses)[0]


def decided(
    text: str, addresses: Iterable[str | None] = (), own: Sequence[BounceRule] | None = None
) -> tuple[Bounce, BounceRule | None]:
    """Return how a refusal is counted, and the row that decided; None: none fits. `own`: rows that
    come before the table, in place of those in use."""
    text = _plain(text)
    found = _CODES.match(text)
    assert found is not None
    shown = masked(text[found.end() :], addresses)
    codes, words = _read(text)
    rule = _deciding(codes, words, tuple(_own if own is None else own))
    reason = BounceClass.OTHER if rule is None else rule.reason
    return Bounce(int(found[1] or 0), reason, shown[:MAX_WORDS].rstrip()), rule


@lru_cache(maxsize=1024)  # many refusals differ in what is masked alone
def _deciding(codes: frozenset[str], words: str, own: tuple[BounceRule, ...]) -> BounceRule | None:
    return next((each for each in (*own, *_table().rules) if each.fits(codes, words)), None)


def is_about_mailbox(text: str) -> bool:
    """True if a refusal is, by its enhanced code, about one address or mailbox, not the site."""
    found = _CODES.match(_plain(text))
    return found is not None and found[1] != "421" and found[3] in ("1", "2")


def code_of(text: str) -> int:
    """Return the basic code of a reply, 0 where the text has none."""
    return int(text[:3]) if text[:1] in tuple("2345") and re.match(r"\d{3}(?!\d)", text) else 0


def masked(text: str, addresses: Iterable[str | None] = ()) -> str:
    """Return the words of a reply with marks in place of addresses, quoted names, hosts and
    numbers, and of the local parts of `addresses` wherever they stand. Takes time in proportion to
    the text: the next hop chose it."""
    for address in addresses:
        local = (address or "").rpartition("@")[0].strip('"')
        if local:
            own = rf"<?(?<![^\W_]){re.escape(local)}(?![^\W_])(?:@[^\s<>\":]+)?>?"
            text = re.sub(own, "<address>", text, flags=re.IGNORECASE)
    enclosed = _ENCLOSED.sub(lambda found: f"<{found.lastgroup}>", text)
    return " ".join(_marked(word) for word in enclosed.split())


def _marked(word: str) -> str:
    """Return a word, or what stands for it."""
    if "@" in word:
        reason = _REASON_BEHIND.search(word)
        return "<address>" if reason is None else f"<address>{reason[1]}"
    if "://" in word or _DOTTED.search(word):
        return "<host>"
    return "#" if _DIGIT.search(word) else word


def _read(text: str) -> tuple[frozenset[str], str]:
    """Return the codes of a refusal and the words of its reason, without what was written around
    them. Bare local parts stay: that of user@example.net is a word that decides."""
    at = max((each.end() for each in _quoted().finditer(text)), default=0)
    if _OF_SENDER.search(text, 0, at) is None:
        text = text[at:]
    found = _CODES.match(text)
    assert found is not None
    basic, enhanced = found[1], found if found[2] else _LATER_CODE.search(text)
    codes = {basic} if basic else set[str]()
    rest = text[found.end() :]
    if enhanced is not None:
        kind, subject, detail = enhanced.groups()[-3:]
        if basic is None or basic[0] == kind:
            subject, detail = str(int(subject)), str(int(detail))
            each = f"{subject}.{detail}", f"{subject}.*"
            codes |= {f"{class_}.{code}" for class_ in (kind, "x") for code in each}
        rest = rest.replace(f"{kind}.{subject}.{detail}", " ")
    if basic:
        rest = re.sub(rf"(?<!\S){basic}(?:-|(?=\s))", " ", rest)  # of further lines
    words = _MARKS.sub("", masked(rest).lower())
    for wrapper in _table().wrappers:
        if (cut := _expression(wrapper.words).pattern.match(words)) is not None:
            words = wrapper.becomes + _MARKS.sub("", words[cut.end() :])
    return frozenset(codes), words


def _plain(text: str) -> str:
    """Return a text on one line, printable and short enough to search it."""
    text = text[:MAX_READ]
    if not text.isprintable():  # nor has it half a surrogate, which no UTF-8 holds
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())
