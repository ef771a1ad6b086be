"""What code, tests and documents cite is there: sources, requirements, decisions, invariants."""

from __future__ import annotations

import re

import pytest

from support.repository import ROOT, needs_a_clone, texts

SOURCE = re.compile(r'Source:\s+(.*?)(?="""|\n\s*\n|\Z)', re.DOTALL)
KNOWN = re.compile(
    r"00[0-4]\b|RFC \d+|ADR \d{4}|invariants? \d+|(SP|LQ|SC|AMB)-\d+|FORMAT\.md \d+"
    # Documents of others that have no number are named here once, in full.
    r"|Kubernetes API conventions|Kubernetes documentation|kstatus|client-go, tools/"
    r"|Spark documentation|Zeller and Hildebrandt, |postconf\(5\)"
    r"|Bernstein, Variable Envelope Return Paths|Postfix documentation, (?:VERP|XCLIENT)_README"
    r"|Linux, include/uapi/|Docker's reference, |Apache Cassandra, native_protocol_v4\.spec"
    r"|Semantic Versioning 2\.0\.0|PEP \d+|Helm, |SPDX 2\.3, |Package URL specification, "
    r"|Dovecot, Authentication Protocol|HAProxy, The PROXY protocol"
    r"|OpenID Connect (?:Core|Discovery) 1\.0"
    r"|OWASP, Password Storage Cheat Sheet|Sendmail, libmilter/mfdef\.h"
    r"|Apache James, [A-Za-z]|RabbitMQ, Broker Semantics|Tink, AES-GCM-HKDF Streaming"
    r"|in-toto Attestation Framework, |SLSA 1\.0, |cosign, Signature specification"
)
REQUIREMENT = re.compile(r"\b(SP|LQ|SC|AMB)-(\d+)(?:(?:\.\.| to )(?:\1-)?(\d+))?")
OWN_NUMBERS = re.compile(r"\b(ADR|invariants?) ((?:\d+(?:, | and )?)+)")
UNCITED = "## Cited by no code and no test"


def unknown_sources(text: str) -> list[str]:
    """The parts of `Source:` texts, between semicolons, that begin with no known source."""
    found = [part for tag in SOURCE.findall(text) for part in re.split(r";(?![^(]*\))", tag)]
    return [part.strip() for part in found if not KNOWN.match(part.strip())]


def requirements_in(text: str) -> set[str]:
    """Every requirement that is cited, each one of a range."""
    return {
        f"{kind}-{number}"
        for kind, first, last in REQUIREMENT.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def own_numbers_in(text: str) -> set[str]:
    """`ADR 0003` and `invariant 4` for every decision and invariant that is cited, lists too."""
    return {
        f"{'ADR' if kind == 'ADR' else 'invariant'} {number}"
        for kind, numbers in OWN_NUMBERS.findall(text)
        for number in re.findall(r"\d+", numbers)
        if kind != "ADR" or len(number) == 4  # James numbers its decisions with two digits
    }


def requirements() -> tuple[set[str], set[str]]:
    """The requirements that the pages of `docs/requirements` have, and those that their index lists
    as uncited."""
    _, uncited = (ROOT / "docs/requirements.md").read_text().split(UNCITED)
    text = "\n".join(page.read_text() for page in (ROOT / "docs/requirements").glob("*.md"))
    written = re.findall(r"^- \*\*([A-Z]+-\d+)\*\*", text, re.MULTILINE)
    assert len(written) == len(set(written)), "a requirement is written twice"
    first_cells = re.findall(r"^\| ([^|]*) \|", uncited, re.MULTILINE)
    return set(written), requirements_in("\n".join(first_cells))


@needs_a_clone
def test_every_source_tag_names_known_sources_in_all_its_parts() -> None:
    unknown = {
        name: parts
        for name, text in texts("operator", "tests", without=__file__)
        if (parts := unknown_sources(text))
    }

    assert unknown == {}


@needs_a_clone
def test_every_requirement_decision_and_invariant_that_is_cited_is_written() -> None:
    written, _ = requirements()
    decisions = {f"ADR {path.name[:4]}" for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    invariants = re.findall(r"^(\d+)\. ", (ROOT / "docs/invariants.md").read_text(), re.MULTILINE)
    known = written | decisions | {f"invariant {number}" for number in invariants}

    cited = {
        name: requirements_in(text) | own_numbers_in(text)
        for name, text in texts(
            *("operator", "tests", "docs", "crds", "manifests", "README", "CHANGE"),
            without=__file__,
        )
    }

    assert {name: found - known for name, found in cited.items() if found - known} == {}


def test_no_two_decisions_have_one_number() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs/adr").glob("[0-9]*.md")]

    assert len(numbers) > 40
    assert sorted({each for each in numbers if numbers.count(each) > 1}) == []


@needs_a_clone
def test_the_list_of_requirements_that_nothing_cites_is_true() -> None:
    written, uncited = requirements()
    cited = {
        one
        for _, text in texts("operator", "tests", without=__file__)
        for one in requirements_in(text)
    }

    assert sorted(uncited) == sorted(written - cited)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""Source: RFC 5321 4.1; hearsay."""', ["hearsay."]),
        ('"""Source: 000\n    Decision (a; b); ADR 0002."""\n\n"""Source: a blog."""', ["a blog."]),
        ('"""Source:\n    a dream."""', ["a dream."]),
        ('"""Source: 0004 Decision."""', ["0004 Decision."]),
    ],
)
def test_a_source_that_is_not_known_is_found_wherever_it_stands(
    text: str, found: list[str]
) -> None:
    assert unknown_sources(text) == found


def test_citations_are_read_one_by_one_from_ranges_and_lists() -> None:
    text = "SP-7..9, LQ-28 to LQ-30; SC-1; ADR 0003, 0018; ADR 32; invariants 4 and 7."

    assert requirements_in(text) == {"SP-7", "SP-8", "SP-9", "LQ-28", "LQ-29", "LQ-30", "SC-1"}
    assert own_numbers_in(text) == {"ADR 0003", "ADR 0018", "invariant 4", "invariant 7"}
