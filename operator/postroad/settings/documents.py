"""Reads documents in YAML by a schema: errors name the place, and what to write instead; and the
types of settings, as their text in a variable is read."""

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError

from postroad.domain.mail.mail import MAILBOX_PATTERN
from postroad.domain.values.instants import parse_duration
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidInput, InvalidSettings

_Model = TypeVar("_Model", bound=BaseModel)

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C is five times as fast; some builds of PyYAML lack it."""


class _Loader(_SafeLoader):  # type: ignore[misc]
    """Refuses a key that stands twice, of which YAML readers drop one without a word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set[Any]()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, list | dict | set):
                raise yaml.MarkedYAMLError(
                    problem="the name of a field is a list or a mapping: put quotes around text"
                    " that begins with { or [",
                    problem_mark=key.start_mark,
                )
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{name} stands twice", problem_mark=key.start_mark
                )
            seen.add(name)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def checked(model: type[_Model], document: object, file: object) -> _Model:
    """Check a document by its schema; an empty one has every default. Raises: InvalidSettings,
    which names each field that is wrong and what to write instead."""
    try:
        return model.model_validate({} if document is None else document, extra="forbid")
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems = [
            f"{_path(each['loc'])}{_advice(model, each)}"
            for each in errors
            if not _follows(each, errors)
        ]
        raise InvalidSettings(f"{file}: {'; '.join(problems)}") from None


def read_yaml(text: Callable[[], str], file: object) -> object:
    """Return the document that a text holds; `file` is its name in errors. Raises:
    InvalidSettings."""
    try:
        found: object = yaml.load(text(), _Loader)  # noqa: S506  # a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        hint = 'put quotes around patterns that begin with "*"' if "alias" in str(error) else ""
        problem = " ".join(str(error).split())
        raise InvalidSettings(f"{file} is not YAML: {problem}", hint=hint) from error
    except (ValueError, RecursionError) as error:  # such as the date 2026-13-01
        raise InvalidSettings(f"{file} is not YAML: {error}") from error
    return found


def _follows(problem: Any, others: Sequence[Any]) -> bool:
    """True if a list counts as too short only because its items are wrong, each by itself."""
    place = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(each["loc"]) > len(place) and each["loc"][: len(place)] == place for each in others
    )


def _path(location: Sequence[int | str]) -> str:
    """Return a place in the document, as `rules[2].hops[0].port: `."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in location)
    return f"{text.removeprefix('.')}: " if text else ""


def _advice(model: type[BaseModel], problem: Any) -> str:
    """Return what is wrong with a field, and what to write."""
    if problem["type"] == "extra_forbidden":
        given = str(problem["loc"][-1])
        close = difflib.get_close_matches(given, sorted(_fields(model, problem["loc"][:-1])), 1)
        return "there is no such field" + (f": did you mean {close[0]}?" if close else "")
    if problem["type"] == "missing":
        return "this field is required"
    if problem["type"] == "too_short":
        return "list one at least, or leave the field out"
    if problem["type"] in ("tuple_type", "list_type"):
        return "write a list, in [ ] or each item behind `- `"
    if problem["type"] == "model_type":
        return f"write fields, as `{min(_fields(model, problem['loc']), default='name')}: …`"
    text = str(problem["msg"])
    return text.removeprefix("Value error, ")


def _fields(model: type[BaseModel], place: Sequence[int | str]) -> set[str]:
    """Return the names of the fields that a document may have at a place, by the model's schema. A
    part of the place that the schema lacks is the kind of a value, as pydantic names it."""
    schema = model.model_json_schema()
    found = list(_alternatives(schema, schema))
    for part in place:
        inner = [
            each["items"] if isinstance(part, int) else each.get("properties", {}).get(part)
            for each in found
            if not isinstance(part, int) or "items" in each
        ]
        below = [deep for each in inner if each for deep in _alternatives(each, schema)]
        found = below or found
    return {name for each in found for name in each.get("properties", {})}


def _alternatives(part: Any, schema: Any) -> Iterator[Any]:
    """Yield a part of a schema, and those that it refers to or may be instead."""
    yield part
    others = [*part.get("anyOf", ()), *part.get("oneOf", ())]
    if "$ref" in part:
        others.append(schema["$defs"][part["$ref"].rpartition("/")[2]])
    for each in others:
        yield from _alternatives(each, schema)


T = TypeVar("T")


def repeated(values: Iterable[T]) -> list[T]:
    """Return what stands more than once."""
    return [each for each, count in Counter(values).items() if count > 1]


def split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def parsed(kind: type[T], parse: Callable[[str], T]) -> BeforeValidator:
    """Parse the text of a value that is not of this type yet; InvalidInput makes it invalid."""

    def check(value: object) -> T:
        try:
            return value if isinstance(value, kind) else parse(str(value))
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(check)


Duration = Annotated[timedelta, parsed(timedelta, parse_duration), Field(gt=timedelta(0))]
"""Written as in Kubernetes: `1h30m`."""

Mailbox = Annotated[str, Field(max_length=254, pattern=MAILBOX_PATTERN)]
"""An address in ASCII, without quotes."""

NetworkList = Annotated[InstanceOf[Networks], parsed(Networks, Networks.parse)]
"""Comma separated."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
