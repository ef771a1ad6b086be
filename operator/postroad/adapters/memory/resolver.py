"""The port `Resolver` over a table of answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from postroad.routing.answers import Answer, AnswerKind, MxRecord, Question, RecordType, TlsaRecord

HOUR = timedelta(hours=1)


class MemoryResolver:
    """Answers from records that were added; any other name does not exist. `asked` has every
    question."""

    def __init__(self) -> None:
        self._addresses: dict[Question, list[str]] = {}
        self._exchanges: dict[Question, list[MxRecord]] = {}
        self._texts: dict[str, list[str]] = {}
        self._certificates: dict[str, list[TlsaRecord]] = {}
        self._validated: set[str] = set()
        self._names: set[str] = set()
        self._aliases: dict[str, str] = {}
        self._unavailable: dict[str, str] = {}
        self.asked: list[Question] = []

    def add(self, name: str, *records: str | tuple[int, str], cname: str | None = None) -> None:
        """Add addresses, and MX records as (preference, host); or make the name a CNAME. Without
        any, the name has no records."""
        self._names.add(name)
        if cname is not None:
            self._aliases[name] = cname
        for record in records:
            if isinstance(record, tuple):
                question = Question(name, RecordType.MX)
                self._exchanges.setdefault(question, []).append(MxRecord(*record))
            else:
                question = Question(name, RecordType.AAAA if ":" in record else RecordType.A)
                self._addresses.setdefault(question, []).append(record)

    def add_text(self, name: str, text: str) -> None:
        """Add a TXT record."""
        self._names.add(name)
        self._texts.setdefault(name, []).append(text)

    def add_certificate(self, name: str, record: TlsaRecord) -> None:
        """Add a TLSA record."""
        self._names.add(name)
        self._certificates.setdefault(name, []).append(record)

    def validate(self, *names: str) -> None:
        """Answer all questions about these names as validated by DNSSEC."""
        self._validated.update(names)

    def fail(self, name: str, reason: str = "SERVFAIL") -> None:
        """Answer no question about a name any more."""
        self._unavailable[name] = reason

    async def look_up(self, *questions: Question) -> tuple[Answer, ...]:
        """Return what was added (see the port)."""
        return tuple(map(self._look_up, questions))

    def _look_up(self, question: Question) -> Answer:
        self.asked.append(question)
        name, aliases = question.name, []
        while name in self._aliases:
            name = self._aliases[name]
            if name in aliases:
                return _unavailable("a loop of CNAME records")
            aliases.append(name)
        if name in self._unavailable:
            return _unavailable(self._unavailable[name])
        found = Question(name, question.type)
        is_validated = {question.name, *aliases} <= self._validated
        return replace(self._answer(found, tuple(aliases)), is_validated=is_validated)

    def _answer(self, question: Question, aliases: tuple[str, ...]) -> Answer:
        exchanges = tuple(self._exchanges.get(question, ()))
        addresses = tuple(self._addresses.get(question, ()))
        is_text, is_tlsa = question.type is RecordType.TXT, question.type is RecordType.TLSA
        texts = tuple(self._texts.get(question.name, ())) if is_text else ()
        certificates = tuple(self._certificates.get(question.name, ())) if is_tlsa else ()
        if exchanges or addresses or texts or certificates:
            return Answer(
                AnswerKind.RECORDS,
                HOUR,
                exchanges,
                addresses,
                aliases,
                texts=texts,
                certificates=certificates,
            )
        is_known = question.name in self._names
        return Answer(AnswerKind.NO_DATA if is_known else AnswerKind.NO_NAME, HOUR, aliases=aliases)


def _unavailable(reason: str) -> Answer:
    return Answer(AnswerKind.UNAVAILABLE, timedelta(seconds=30), reason=reason)
