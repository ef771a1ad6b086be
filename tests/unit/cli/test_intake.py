"""Where an intake listens and whom it relays for, when little or nothing is set."""

from __future__ import annotations

import logging

import pytest

from postroad import open_queue
from postroad.cli.processes.intake import certificate_of, log_rules, rules_of, with_clients
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidSettings
from postroad.settings import Settings, from_environment


def test_an_intake_listens_on_loopback_and_relays_for_loopback_by_default() -> None:
    section = with_clients(from_environment({}), None).intake

    assert section.host == "127.0.0.1"
    assert "127.0.0.1" in rules_of(section).relay_from
    assert "192.168.1.1" not in rules_of(section).relay_from


@pytest.mark.parametrize(
    "listen", ["*:25", "0.0.0.0:25", "[::]:25", "192.0.2.1:25", "10.0.0.1", "mail.example:25"]
)
def test_other_addresses_need_networks(listen: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        with_clients(from_environment({}), listen)

    assert "--relay-from or POSTROAD_INTAKE_RELAY_FROM" in refusal.value.explain()
    networks = Networks.parse("192.0.2.0/24")
    assert rules_of(with_clients(Settings(), listen, networks).intake).relay_from == networks
    with pytest.raises(InvalidSettings):
        with_clients(from_environment({"POSTROAD_INTAKE_HOST": "*"}), None)


@pytest.mark.parametrize("listen", ["localhost:25", "127.0.0.2:0", "[::1]:25", None])
def test_loopback_addresses_need_none(listen: str | None) -> None:
    assert rules_of(with_clients(Settings(), listen).intake).relay_from == Networks.parse(
        "127.0.0.0/8, ::1"
    )


def test_an_option_overrides_the_variable() -> None:
    settings = from_environment({"POSTROAD_INTAKE_RELAY_FROM": "10.0.0.0/8"})

    assert with_clients(settings, None).intake.relay_from == Networks.parse("10.0.0.0/8")
    option = Networks.parse("192.0.2.0/24")
    assert with_clients(settings, None, option).intake.relay_from == option


def test_a_variable_with_a_bad_network_is_named_with_what_to_write() -> None:
    with pytest.raises(InvalidSettings, match=r"POSTROAD_INTAKE_RELAY_FROM.*write 10.0.0.0/8"):
        from_environment({"POSTROAD_INTAKE_RELAY_FROM": "127.0.0.1,10.0.0.1/8"})


def test_what_is_wrong_with_a_variable_follows_its_name() -> None:
    with pytest.raises(InvalidSettings, match=r"^POSTROAD_HOSTNAME: write a full name"):
        from_environment({"POSTROAD_HOSTNAME": "localhost"})


@pytest.mark.parametrize("variable", ["TLS_KEY", "TLS_PORT"])
def test_tls_needs_a_certificate(variable: str) -> None:
    section = from_environment({f"POSTROAD_INTAKE_{variable}": "0"}).intake

    with pytest.raises(InvalidSettings, match=f"POSTROAD_INTAKE_{variable} is set without") as no:
        certificate_of(section)

    assert "POSTROAD_INTAKE_TLS_CERTIFICATE" in no.value.hint


def test_line_ends_are_normalised_for_all_or_for_some_networks() -> None:
    def normalised(**variables: str) -> list[bool]:
        section = from_environment({f"POSTROAD_INTAKE_{k}": v for k, v in variables.items()}).intake
        rules = rules_of(section)
        return [
            rules.rights_of(each).normalises_line_ends for each in ("10.0.0.1", "192.0.2.1", "::1")
        ]

    assert normalised() == [False, False, False]
    assert normalised(NORMALISE_FROM="10.0.0.0/8") == [True, False, False]
    assert normalised(BARE_LINE_ENDS="normalise") == [True, True, True]


@pytest.mark.parametrize(
    ("networks", "warnings"), [("10.0.0.0/8, ::1", 0), ("10.0.0.0/8, 0.0.0.0/0", 1), ("::/0", 1)]
)
async def test_the_start_logs_the_networks_and_warns_of_an_open_relay(
    networks: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "postroad.intake")
    async with open_queue("memory://q", create=True) as queue:
        log_rules(queue, Networks.parse(networks))

    said = [(each.levelname, vars(each)["networks"]) for each in caplog.records]
    expected = str(Networks.parse(networks))
    assert said == [("INFO", expected)] + [("WARNING", expected)] * warnings
