"""What `spec.intake` of a MailQueue becomes in the pods of its intake, and when they roll."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postroad.controller.kubernetes.api import CONFIG_MAP, SECRET
from postroad.controller.spec.intake import Intake
from postroad.domain.values.networks import Networks
from postroad.intake.logins.passwords import record_of
from postroad.intake_settings.listeners import ListenerRole
from postroad.intake_settings.user_file import UserFile, written
from support.built_pods import IntakePod
from support.certificates import Certificates
from support.manual_loop import move, run
from support.resources import intake, relay, secret, workers
from support.running_controller import NAMESPACE, RunningController, running_controller
from support.spec_cases import (
    CERTIFICATE,
    CERTIFIED,
    HOOK_FILTER,
    LOGIN,
    MILTER,
    MX,
    NAMED,
    OIDC,
    SUBMISSION,
    TLS,
    USERS,
)

LONGER_THAN_A_FULL_RECONCILE = 400

RECIPIENTS: dict[str, Any] = {"secretRef": {"name": "recipients", "key": "a.txt"}}
CALL_AHEAD = {
    "host": "imap",
    "tls": {"mode": "Required", "caRef": {"name": "theirs"}},
    "login": LOGIN,
}
DOMAINS: list[dict[str, Any]] = [
    {"name": "a.example", "recipients": RECIPIENTS},
    {"name": "c.example", "recipients": {"callAhead": CALL_AHEAD}, "backup": True},
]
SMTPS = SUBMISSION | {
    "name": "smtps",
    "port": 465,
    "tls": {"mode": "Implicit", "certificates": [CERTIFICATE, NAMED | {"certRef": {"name": "b"}}]},
}
RULE = {"users": ["*@a.example"], "senders": ["@a.example"], "maxSize": "1Mi", "fixUp": True}
ALL: dict[str, Any] = {
    "hostname": "mx.a.example",
    "listeners": [relay("10.0.0.0/8", "fd00::/8"), SUBMISSION, SMTPS, MX],
    "users": USERS | {"oidc": OIDC},
    "rules": [RULE],
    "domains": DOMAINS,
    "filters": [HOOK_FILTER],
}


INTERNET = ["0.0.0.0/0"]


@pytest.mark.parametrize(
    ("listener", "is_open"),
    [
        (relay(*INTERNET), True),
        (relay("10.0.0.0/8"), False),
        (relay("10.0.0.0/8") | {"proxyFrom": INTERNET}, True),
        (relay("10.0.0.0/8") | {"xclientFrom": INTERNET}, True),
        (relay("0.0.0.0/1") | {"proxyFrom": ["128.0.0.0/1"]}, True),
        (relay("10.0.0.0/8") | {"proxyFrom": ["10.0.0.0/8"]}, False),
        (CERTIFIED | {"proxyFrom": INTERNET}, False),
        (MX | {"proxyFrom": INTERNET, "xclientFrom": INTERNET}, False),
        (SUBMISSION | {"proxyFrom": INTERNET}, False),
        (SUBMISSION | {"xclientFrom": INTERNET}, True),
    ],
)
def test_a_listener_that_the_whole_internet_may_send_by_is_an_open_relay(
    listener: dict[str, Any], is_open: bool
) -> None:
    found = Intake.model_validate(ALL | {"listeners": [listener], "filters": []})

    assert found.open_relays == [listener["name"]] * is_open


def test_the_program_reads_what_the_resource_has_with_files_in_place_of_secrets(
    tmp_path: Path,
) -> None:
    pod = IntakePod(intake=intake(**ALL))

    read = pod.read(tmp_path)

    clear, submission, smtps, mx = read.listeners
    assert read.hostname == "mx.a.example"
    assert clear.relays_for == Networks.parse("10.0.0.0/8,fd00::/8")
    assert [each.address for each in read.listeners] == ["*"] * 4
    assert (mx.role, submission.port, smtps.is_implicit) == (ListenerRole.MX, 587, True)
    assert smtps.tls
    first, second = smtps.tls.certificates
    assert (first.cert, first.key) == tuple(
        pod.folder_of("intake-tls") / name for name in ("tls.crt", "tls.key")
    )
    assert second.cert
    assert pod.secret_of(second.cert) == "b"
    assert second.names == ("*.a.example",)
    assert read.users
    assert read.users.oidc
    assert read.users.file == pod.folder_of("users") / "users.yaml"
    assert read.rules[0].max_size == 1 << 20
    assert read.domains[0].recipients
    assert read.domains[0].recipients.file == pod.folder_of("recipients") / "a.txt"
    asked = read.domains[1].recipients
    assert asked
    assert asked.call_ahead
    hop = asked.call_ahead.next_hop()
    assert (hop.host, read.domains[1].backup) == ("imap", True)
    assert hop.login
    assert hop.login.folder == pod.folder_of("relay-login")
    assert hop.authorities
    assert pod.authorities_of(hop.authorities) == ("secret", "theirs")
    (hook,) = read.filters
    assert hook.secret
    assert hook.secret.file == pod.folder_of("hook") / "secrets"
    assert hook.tls
    assert hook.tls.ca_file
    assert pod.authorities_of(hook.tls.ca_file) == ("configMap", "ours")
    assert all(each.get("readOnly") for each in pod.mounts if each["name"].startswith("intake"))


def test_a_short_intake_has_a_file_of_what_is_declared_alone() -> None:
    """A release that lacks a newer field reads it, unless the field is used."""
    pod = IntakePod()

    assert pod.text() == (
        "listeners:\n- name: smtp\n  role: relay\n  port: 2525\n  from:\n  - 10.0.0.0/8\n"
    )


def test_secrets_of_an_intake_are_in_its_pods_alone() -> None:
    found = IntakePod(intake=intake(**ALL), workers=workers()).children

    others = {key: each for key, each in found.items() if key[1] != "outgoing-intake"}
    assert "outgoing-worker" in str(others)
    for name in ("intake-tls", "users.yaml", "recipients", "relay-login", "theirs", "ours"):
        assert name not in json.dumps([*others.values()])


def certificate(folder: Path) -> dict[str, str]:
    files = Certificates.copied(folder)
    return {"tls.crt": files.chain.read_text(), "tls.key": files.key.read_text()}


async def declared(operator: RunningController, folder: Path) -> None:
    """Declare an intake with the Secrets that it names."""
    users = written(UserFile(secret="s" * 32, users=(record_of("u@a.example", "secret-word"),)))
    await operator.create(secret(NAMESPACE, "users", {"users.yaml": users, "more.yaml": users}))
    await operator.create(secret(NAMESPACE, "recipients", {"a.txt": "info\npost@a.example\n"}))
    for name in ("intake-tls", "b"):
        await operator.create(secret(NAMESPACE, name, certificate(folder)))
    authorities = {"ca.crt": Certificates.copied(folder).authority.read_text()}
    await operator.create(secret(NAMESPACE, "theirs", authorities))
    ours = {"kind": "ConfigMap", "metadata": {"namespace": NAMESPACE, "name": "ours"}}
    await operator.user.create(CONFIG_MAP, {"apiVersion": "v1", **ours, "data": authorities})
    await operator.create(secret(NAMESPACE, "hook", {"secrets": "s" * 24}))
    await operator.create(secret(NAMESPACE, "relay-login", {"username": "u", "password": "p"}))
    await operator.declare(intake=intake(**ALL))
    assert operator.condition("Ready")["status"] == "True"


def file_of(operator: RunningController) -> str:
    found = operator.at("configmaps", NAMESPACE, "outgoing-intake")
    assert found
    return str(found["data"]["intake.yaml"])


def template_of(operator: RunningController) -> Any:
    found = operator.at("deployments", NAMESPACE, "outgoing-intake")
    assert found
    return found["spec"]["template"]


OTHER_KEY = {"users": USERS | {"oidc": OIDC, "secretRef": {"name": "users", "key": "more.yaml"}}}
STARTTLS = [relay("10.0.0.0/8", "fd00::/8"), SUBMISSION, SMTPS | {"tls": TLS}, MX]


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"rules": [RULE | {"perDay": 9}]}, False),
        ({"domains": [*DOMAINS, {"name": "b.example"}]}, False),
        ({"listeners": [relay("192.0.2.0/24"), *ALL["listeners"][1:]]}, False),
        (OTHER_KEY, False),
        ({"users": {"secretRef": None}}, True),
        ({"users": {"oidc": OIDC | {"audience": "other"}}}, True),
        ({"domains": [{"name": "a.example"}]}, True),
        ({"filters": [HOOK_FILTER, MILTER]}, False),
        ({"filters": [HOOK_FILTER | {"tls": {"caRef": {"name": "theirs"}}}]}, True),
        ({"listeners": STARTTLS}, True),
        ({"listeners": [*ALL["listeners"][:3], MX | {"port": 2500}]}, True),
    ],
    ids=[
        *("a rule", "a domain", "networks", "another key", "no file of users", "another issuer"),
        *(
            "another set of Secrets",
            "another filter",
            "other authorities",
            "another mode of TLS",
            "another port",
        ),
    ],
)
def test_a_change_reaches_the_file_and_replaces_pods_where_the_process_cannot_follow_it(
    tmp_path: Path, change: dict[str, Any], replaced: bool
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator, tmp_path)
            before, file = template_of(operator), file_of(operator)

            await operator.change({"intake": change})
            await move(10)

            assert operator.condition("Ready")["status"] == "True"
            assert file_of(operator) != file
            assert (template_of(operator) != before) is replaced

    run(scene())


@pytest.mark.parametrize(
    ("name", "data", "reason", "said"),
    [
        (
            "users",
            {"users.yaml": None},
            "CredentialsMissing",
            "spec.intake.users.secretRef: Secret mail/users has no key users.yaml",
        ),
        (
            "users",
            {"users.yaml": "c2VjcmV0LXdvcmQ6IHNlY3JldC13b3Jk"},
            "CredentialsMissing",
            "is no file of users (write it with `postroad users add`)",
        ),
        (
            "recipients",
            {"a.txt": "c2VjcmV0LXdvcmRAYi5leGFtcGxl"},
            "CredentialsMissing",
            "recipients.secretRef: `a.txt` of Secret mail/recipients cannot be used: line 1: the",
        ),
        ("recipients", {"a.txt": "IyBub25lCg=="}, "CredentialsMissing", "none is listed"),
        (
            "hook",
            {"secrets": "c2VjcmV0LXdvcmQ="},
            "CredentialsMissing",
            "spec.intake.filters[0].secret.secretRef: `secrets` of Secret mail/hook cannot sign: a",
        ),
        (
            "relay-login",
            {"password": None},
            "CredentialsMissing",
            "domains[1].recipients.callAhead.login.secretRef: Secret mail/relay-login has no key",
        ),
        (
            "theirs",
            {"ca.crt": "c2VjcmV0LXdvcmQ="},
            "CertificateUnusable",
            "recipients.callAhead.tls.caRef: `ca.crt` of Secret mail/theirs holds no certificate",
        ),
        (
            "b",
            {"tls.key": "c2VjcmV0LXdvcmQ="},
            "CertificateUnusable",
            "spec.intake.listeners[2].tls.certificates[1].certRef: `tls.crt` and `tls.key` of ",
        ),
    ],
    ids=[
        *("no key", "no users", "a foreign recipient", "no recipient", "short", "no password"),
        *("no authorities", "no pair"),
    ],
)
def test_a_secret_without_what_it_is_for_is_a_condition_and_all_stays_as_it_is(
    tmp_path: Path, name: str, data: dict[str, Any], reason: str, said: str
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator, tmp_path)
            before, file = template_of(operator), file_of(operator)
            found = await operator.user.get(SECRET, NAMESPACE, name)
            assert found

            await operator.user.patch(SECRET, NAMESPACE, name, {"data": data})
            await operator.change({"intake": {"rules": []}})
            await move(LONGER_THAN_A_FULL_RECONCILE)

            condition = operator.condition("IntakeReady")
            assert (condition["status"], condition["reason"]) == ("False", reason)
            assert said in condition["message"]
            assert "secret-word" not in json.dumps(operator.at("mailqueues", NAMESPACE, "outgoing"))
            assert operator.condition("WorkersReady")["status"] == "True"
            assert (template_of(operator), file_of(operator)) == (before, file)
            await operator.user.patch(SECRET, NAMESPACE, name, {"data": found["data"]})
            await move(LONGER_THAN_A_FULL_RECONCILE)
            assert operator.condition("Ready")["status"] == "True"
            assert file_of(operator) != file

    run(scene())


def test_what_the_api_server_cannot_judge_is_a_condition_with_what_to_do(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator, tmp_path)
            file = file_of(operator)

            await operator.change({"intake": {"rules": [{"users": ["a*b"]}]}})
            await move(10)

            ready = operator.condition("Ready")
            assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
            assert "write a user, or * and the end of users' names" in ready["message"]
            assert file_of(operator) == file

    run(scene())
