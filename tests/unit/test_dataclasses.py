"""Dataclasses have slots, and are frozen unless code changes them.

Slots refuse an attribute that no field declares; what is frozen may be shared and compared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.repository import needs_a_clone, texts

DATACLASS = re.compile(r"^@dataclass(?:\((.*)\))?\n(?:@.*\n)*class (\w+)", re.M)

OTHERS = {
    "LeasedMail": "its subclasses, the items of the engines, have and change further attributes",
    "MemoryUser": "a test takes the rights of one",
    "RoutingTable": "keeps what it found out (cached_property)",
}
"""Dataclasses without slots, or not frozen though no code changes a field, with the reason."""


@needs_a_clone
def test_a_dataclass_has_slots_and_is_frozen_unless_code_changes_it() -> None:
    found = [each for _, text in texts("operator") for each in DATACLASS.findall(text)]
    without_slots = {name for options, name in found if "slots=True" not in options}
    changeable = {name for options, name in found if "frozen=True" not in options}

    assert len(found) > 300
    assert without_slots | (changeable - set(_changed(changeable))) == OTHERS.keys()


def _changed(names: set[str]) -> Iterator[str]:
    """Yield the classes of which a field is assigned, in the class or where a module names it."""
    word = re.compile(rf"\b(?:{'|'.join(names)})\b")
    parsed = [
        (set(word.findall(text)), ast.parse(text))
        for path, text in texts("operator")
        if path.endswith(".py") and word.search(text)
    ]
    classes = {
        each.name: each
        for _, tree in parsed
        for each in tree.body
        if isinstance(each, ast.ClassDef) and each.name in names
    }
    for name, its_class in classes.items():
        fields = {
            each.target.id
            for each in its_class.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        assigned = set(_assigned(its_class, by_self=True)).union(
            *(_assigned(tree, by_self=False) for named, tree in parsed if name in named)
        )
        if fields & assigned:
            yield name


def _assigned(tree: ast.AST, *, by_self: bool) -> Iterator[str]:
    """Yield the attributes that are assigned: those of `self`, or of anything else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if is_self is by_self:
                yield node.attr
