"""Secrets are named in a MailQueue alone; a file has the files of what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from postroad.delivery_settings.delivery import DeliveryFileSettings
from postroad.delivery_settings.files import read_delivery, written
from postroad.delivery_settings.secret_references import secrets_of
from postroad.errors import InvalidSettings

SECRET = {"name": "s"}
KEY = {"name": "s", "key": "k.pem"}


def with_login(**login: Any) -> dict[str, Any]:
    hop = {"host": "h.example", "tls": {"mode": "Required"}, "login": login}
    rule = {"name": "a", "hops": [{"host": "g.example"}, hop]}
    return {"routing": {"rules": [rule]}}


def with_key(**key: Any) -> dict[str, Any]:
    return {"signing": [{"domain": "a.example", "keys": [{"selector": "s", **key}]}]}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (with_login(secretRef=SECRET), "routing.rules[0].hops[1].login.secretRef"),
        (with_key(secretRef=KEY), "signing[0].keys[0].secretRef"),
    ],
)
def test_a_file_that_names_a_secret_is_refused_with_what_to_write(
    tmp_path: Path, document: dict[str, Any], place: str
) -> None:
    settings = DeliveryFileSettings.model_validate(document)
    file = tmp_path / "delivery.yaml"
    file.write_text(str(document))

    assert [path for path, _ in secrets_of(settings)] == [place]
    with pytest.raises(InvalidSettings) as refusal:
        read_delivery(file)
    assert f"{place}: a Secret is named in a MailQueue alone: write the folder" in str(
        refusal.value
    )
    file.write_text(
        written(
            settings,
            lambda reference: f"/run/secrets/{reference['name']}",
        )
    )
    assert not list(secrets_of(read_delivery(file)))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (with_login(), r"give either secretRef \(in a MailQueue\) or folder"),
        (with_login(secretRef=SECRET, folder="/run/s"), "give either secretRef"),
        (with_key(), r"give either secretRef \(in a MailQueue\) or file"),
        (with_key(secretRef=KEY, file="k.pem"), "give either secretRef"),
        (with_key(secretRef=SECRET), "Field required"),
    ],
)
def test_each_login_and_key_has_one_place(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DeliveryFileSettings.model_validate(document)


def test_a_field_that_this_release_does_not_know_is_refused_in_a_file_alone(tmp_path: Path) -> None:
    """A newer CRD beside this operator may have more fields; a file has what its author wrote."""
    document = {"routing": {"later": 1}}
    (tmp_path / "delivery.yaml").write_text(str(document))

    assert DeliveryFileSettings.model_validate(document).routing
    with pytest.raises(InvalidSettings, match=r"routing\.later: there is no such field"):
        read_delivery(tmp_path / "delivery.yaml")


def test_defaults_are_left_out_so_that_a_release_without_the_field_reads_the_file() -> None:
    rule = {"name": "a", "mx": {"tls": {"mode": "Opportunistic"}}, "domains": ["a.example"]}
    settings = DeliveryFileSettings.model_validate(
        {"routing": {"rules": [rule], "families": ["IPv4"]}}
    )

    text = written(settings, str)

    assert text == (
        "routing:\n"
        "  rules:\n"
        "  - name: a\n"
        "    domains:\n"
        "    - a.example\n"
        "    mx: {}\n"
        "  families:\n"
        "  - IPv4\n"
    )


@pytest.mark.parametrize(
    "tenant",
    [
        "a\x85b",
        "\x85",
        "\ufeff",
        "\x00",
        "é😀",
        " a ",
        "null",
        "12:30:45",
        "1e3",
        "{{ a }}",
        "a: b #c",
    ],
    ids=ascii,
)
def test_a_text_reaches_the_program_as_it_is(tmp_path: Path, tenant: str) -> None:
    """Also one that YAML would take for a number, a line break or nothing."""
    limit = {"name": "a", "perMinute": 1, "tenants": [tenant]}
    settings = DeliveryFileSettings.model_validate({"limits": [limit]})
    file = tmp_path / "delivery.yaml"
    file.write_text(written(settings, str))

    assert read_delivery(file) == settings
