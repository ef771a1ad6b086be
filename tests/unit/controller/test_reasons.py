"""Every reason that the operator's code writes out stands on a page. Those of errors, whose names
are reasons too, and those that one part passes on from another are not looked for."""

from __future__ import annotations

import ast
import re

from support.repository import ROOT

PLACES = {"good": 2, "bad": 1, "advice": 1, "unknown": 1, "Finding": 2}
"""The argument that is the reason, of each function that makes a finding."""
PAGES = (ROOT / "docs/operator/conditions.md", ROOT / "docs/operator/tasks.md")


def test_every_reason_that_the_code_writes_out_stands_on_a_page() -> None:
    nodes = [
        node
        for path in (ROOT / "operator/postroad/controller").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    written, names = set(), {"reason"}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        place = PLACES.get(ast.unparse(call.func).rpartition(".")[2], len(call.args))
        for given in call.args[place : place + 1]:
            names.add(ast.unparse(given).rpartition(".")[2])
            written |= texts_in(given)
    for each in (node for node in nodes if isinstance(node, ast.Assign)):
        targets = {ast.unparse(name) for target in each.targets for name in parts_of(target)}
        written |= texts_in(each.value) if targets & names else set()
    named = {name for page in PAGES for name in re.findall(r"`(\w+)`", page.read_text())}

    assert {"TooSlow", "Tried", "UpgradesHeld", "PodsNotReady", "InUse"} <= written
    assert written - named == set()


def parts_of(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple) else [target]


def texts_in(value: ast.expr) -> set[str]:
    """Return the strings in an expression that have the form of a reason."""
    found = {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}
    return {each for each in found if isinstance(each, str) and re.fullmatch("[A-Z]\\w+", each)}
