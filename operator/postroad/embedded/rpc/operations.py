"""The operations of the socket: how the arguments and the result of each become JSON and back.

The client encodes arguments and decodes results by this table, the owner the other way round. What
is not named here goes as it is."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from postroad.domain.delivery.retries import DONE, DeferItem, Done, ItemEnding, Reject, RetryItem
from postroad.domain.mail import envelope_documents
from postroad.domain.mail.mail import Outcome
from postroad.domain.mail.shapes import Shape
from postroad.domain.queues import documents
from postroad.domain.queues.documents import LeasedMail
from postroad.domain.values.instants import duration, duration_us
from postroad.embedded.log.records import cut
from postroad.ports.mail_queue import Operation

MAX_TEXTS = 512 * 1024
"""Characters of the texts of one frame, with up to 12 octets each in JSON (rpc.MAX_FRAME)."""


def _as_it_is(value: Any) -> Any:
    return value


def _ages_value(ages: Mapping[str, Mapping[timedelta, int]]) -> dict[str, list[list[int]]]:
    return {
        domain: [[duration_us(limit), count] for limit, count in counts.items()]
        for domain, counts in ages.items()
    }


def _ages_of(value: Mapping[str, list[list[int]]]) -> dict[str, dict[timedelta, int]]:
    return {
        domain: {duration(limit): count for limit, count in counts}
        for domain, counts in value.items()
    }


_WAITING = {each.name: each for each in (RetryItem, DeferItem)}


class Leased(NamedTuple):
    """A mail as `next` hands it out: its number on this connection, and its fields by name."""

    number: int
    fields: Mapping[str, Any]
    failures: Mapping[str, str]


def leased_value(number: int, mail: LeasedMail, failures: Mapping[str, str]) -> dict[str, Any]:
    longest = _longest_text(failures)
    cut = {address: text[:longest] for address, text in failures.items()}
    return {"item": number, **documents.leased_value(mail), "failures": cut}


def _leased_of(value: Mapping[str, Any]) -> Leased:
    return Leased(value["item"], documents.leased_fields(value), value["failures"])


def _recorded_value(outcomes: Mapping[str, Outcome]) -> dict[str, list[str]]:
    longest = _longest_text(outcomes)
    return {to: [each.kind, each.text[:longest]] for to, each in outcomes.items()}


def _ending_value(ending: ItemEnding) -> dict[str, Any]:
    """Return an ending with as much of its reason as the owner keeps: a frame has little room."""
    value: dict[str, Any] = {"name": ending.name}
    if not isinstance(ending, Done):
        value["reason"] = None if ending.reason is None else cut(ending.reason).decode()
    if isinstance(ending, RetryItem | DeferItem):
        value |= {"delay": duration_us(ending.delay), "remaining": ending.remaining}
    return value


def _ending_of(value: Mapping[str, Any]) -> ItemEnding:
    name = value["name"]
    if name == Done.name:
        return DONE
    if name == Reject.name:
        return Reject(value["reason"])
    remaining = value["remaining"]
    addresses = None if remaining is None else tuple(remaining)
    return _WAITING[name](duration(value["delay"]), addresses, value["reason"])


def _longest_text(recipients: Mapping[str, object]) -> int:
    """Return how long a text for each of these recipients may be, so that all fit into a frame,
    beside the largest envelope and their addresses."""
    return MAX_TEXTS // max(1, len(recipients))


class Codec(NamedTuple):
    """A value to JSON, and back."""

    encode: Callable[[Any], Any] = _as_it_is
    decode: Callable[[Any], Any] = _as_it_is


AS_IT_IS = Codec()
DURATION = Codec(duration_us, duration)
ENVELOPE = Codec(envelope_documents.envelope_value, envelope_documents.envelope_of)
SELECTOR = Codec(documents.selector_value, documents.selector_of)
VIEW = Codec(documents.exact_view, documents.view_of_exact)
SIZES = Codec(documents.sizes_value, documents.sizes_of)
AGES = Codec(_ages_value, _ages_of)
OUTCOMES = Codec(documents.outcomes_value, documents.outcomes_of)
RECORDED = Codec(
    _recorded_value,
    lambda value: {to: Outcome(*each) for to, each in value.items()},
)
ENDING = Codec(_ending_value, _ending_of)
SHAPE = Codec(
    lambda shape: None if shape is None else shape.as_text(),
    lambda text: None if text is None else Shape.from_text(text),
)


class Call(NamedTuple):
    """One operation. `element` is for the parts of a stream; `undone_by` is the operation by which
    the client gives back an item whose caller has stopped waiting for it."""

    arguments: Mapping[str, Codec] = {}
    result: Codec = AS_IT_IS
    element: Codec = AS_IT_IS
    takes_content: bool = False
    undone_by: str | None = None

    def encoded(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = self.arguments
        return {name: known.get(name, AS_IT_IS).encode(each) for name, each in arguments.items()}

    def decoded(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as they were given. Raises: any error of a value that is malformed."""
        known = self.arguments
        return {name: known.get(name, AS_IT_IS).decode(each) for name, each in arguments.items()}


_views = partial(Call, {"selector": SELECTOR}, element=VIEW)

CALLS: Mapping[str, Call] = {
    "hello": Call(),
    "enqueue": Call({"mail": ENVELOPE, "delay": DURATION}, Codec(str, UUID), takes_content=True),
    "lend": Call(),
    "refused": Call(),
    "browse": _views(),
    "dead_letters": _views(),
    "mail_content": Call({"enqueue_id": Codec(str, UUID)}),
    "size": Call(result=SIZES),
    "ages": Call(result=AGES),
    **{operation.value: Call({"selector": SELECTOR}) for operation in Operation},
    "purge": Call(),
    "republish": Call({"older_than": DURATION}),
    "maintain": Call(),
    "consume": Call(),
    "next": Call(result=Codec(decode=_leased_of), undone_by="give_back"),
    "content": Call(),
    "shape": Call(result=SHAPE),
    "record": Call({"outcomes": RECORDED}),
    "end": Call({"ending": ENDING, "outcomes": OUTCOMES}),
    "give_back": Call(),
}
