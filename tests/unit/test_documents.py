"""Fields that a document has and its schema lacks: the error names one that may stand there."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from postroad.errors import InvalidSettings
from postroad.settings.documents import checked


class File(BaseModel):
    kind: Literal["file"]
    path: str = ""


class Web(BaseModel):
    kind: Literal["web"]
    address: str = ""


class Rule(BaseModel):
    domains: list[str] = []
    target: Annotated[File | Web, Field(discriminator="kind")] | None = None


class Document(BaseModel):
    rules: list[Rule] = []
    limit: int | None = None


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"rule": []}, "rule: there is no such field: did you mean rules?"),
        ({"rules": [{"domain": []}]}, "rules[0].domain: there is no such field: did you mean doma"),
        ({"rules": [{"limitt": 1}]}, "rules[0].limitt: there is no such field"),
        ({"domain": []}, "domain: there is no such field"),
        (
            {"rules": [{"target": {"kind": "web", "adress": "x"}}]},
            "rules[0].target.web.adress: there is no such field: did you mean address?",
        ),
    ],
)
def test_a_field_of_the_same_place_is_proposed(document: object, said: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        checked(Document, document, "a.yaml")

    text = str(refused.value).removeprefix("a.yaml: ")
    assert text.startswith(said)
    assert ("did you mean" in text) == ("did you mean" in said)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("rules []", "write fields, as `limit: …`"),
        ([], "write fields, as `limit: …`"),
        ({"rules": ["x"]}, "rules[0]: write fields, as `domains: …`"),
        ({"rules": {"domains": []}}, "rules: write a list, in [ ] or each item behind `- `"),
        ({"rules": [{"domains": "x"}]}, "rules[0].domains: write a list, in [ ] or each item"),
    ],
)
def test_a_value_of_another_shape_is_answered_in_the_words_of_yaml(
    document: object, said: str
) -> None:
    with pytest.raises(InvalidSettings) as refused:
        checked(Document, document, "a.yaml")

    assert str(refused.value).removeprefix("a.yaml: ").startswith(said)
