"""Which functions a fault changes, and giving functions that exist already their changed code.

A fault in a function needs no import: tests that are collected meet it as soon as the function's
code is replaced. Pure but for `LiveFunctions`.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

from mutants.faults import Fault, mutated


class Place(NamedTuple):
    """Where a function is defined."""

    path: str
    line: int
    name: str


Changed = Mapping[Place, CodeType]


def changed_functions(path: Path, fault: Fault) -> Changed | None:
    """Return the functions whose code a fault changes; None where it changes what runs at import,
    where two functions on one line have the same name, or where a function would need other
    variables of the one around it: such code replaces no other."""
    source = path.read_text()
    before = compile(source, str(path), "exec", dont_inherit=True)
    after = compile(mutated(source, fault), str(path), "exec", dont_inherit=True)
    if _at_import(before) != _at_import(after):
        return None
    old, new = _by_place(before), _by_place(after)
    changed = {place: codes for place, codes in new.items() if codes != old.get(place)}
    if not all(_can_replace(codes, old.get(place, [])) for place, codes in changed.items()):
        return None
    return {place: codes[0] for place, codes in changed.items()}


class LiveFunctions:
    """The functions of this process, by the place of their definition. Those that exist already are
    changed; those that another one makes later have its changed code."""

    def __init__(self) -> None:
        gc.unfreeze()  # the tests' configuration freezes what is imported
        self._functions: dict[Place, list[FunctionType]] = {}
        for each in gc.get_objects():
            if (
                type(each) is FunctionType
            ):  # a lazy object of Django raises where its class is asked
                self._functions.setdefault(_place(each.__code__), []).append(each)
        gc.freeze()

    def change(self, changed: Changed) -> int:
        """Replace their code; return how many functions were changed."""
        found = [
            (each, code)
            for place, code in changed.items()
            for each in self._functions.get(place, [])
        ]
        for function, code in found:
            function.__code__ = code
        return len(found)


def _by_place(code: CodeType) -> dict[Place, list[CodeType]]:
    found: dict[Place, list[CodeType]] = {}
    for each in _functions(code):
        found.setdefault(_place(each), []).append(each)
    return found


def _can_replace(new: Sequence[CodeType], old: Sequence[CodeType]) -> bool:
    """Whether the code of live functions can be replaced; no comprehension is one."""
    if new[0].co_name.startswith("<") and new[0].co_name != "<lambda>":
        return True
    return len(new) == len(old) == 1 and new[0].co_freevars == old[0].co_freevars


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions in a piece of code, however deep."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if _is_function(each):
                yield each
            yield from _functions(each)


def _at_import(code: CodeType) -> tuple[object, ...]:
    """Return what is equal for two pieces of code that differ at most within their functions."""
    constants = tuple(
        (_at_import(each) if not _is_function(each) else "function")
        if isinstance(each, CodeType)
        else (type(each), each)
        for each in code.co_consts
    )
    return (code.co_code, code.co_names, constants)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def _place(code: CodeType) -> Place:
    return Place(code.co_filename, code.co_firstlineno, code.co_qualname)
