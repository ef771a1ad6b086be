"""What `spec.delivery` of a MailQueue becomes in the pods of its workers, and when they roll."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroad.controller.kubernetes.api import SECRET
from postroad.delivery_settings.delivery import DeliverySettings
from postroad.domain.delivery.suppressed import SuppressionRules
from postroad.domain.smtp.bounces import BounceClass
from postroad.domain.smtp.next_hops import (
    HopLogin,
    NextHop,
    OldestTls,
    Protocol,
    SourceAddresses,
    TlsMode,
)
from postroad.domain.smtp.sasl_client import Mechanism
from support.built_pods import WorkerPod
from support.manual_loop import move, run
from support.resources import intake, secret, workers
from support.running_controller import NAMESPACE, RunningController, running_controller
from support.signing import ed25519_pem

LONGER_THAN_A_FULL_RECONCILE = 400

BY_MX = {"replicas": 0, "handler": {"mx": {}}}
LOGIN: dict[str, Any] = {"secretRef": {"name": "relay-login"}}
DKIM: dict[str, Any] = {"name": "dkim.example.org", "key": "r2026a.pem"}
DELIVERY: dict[str, Any] = {
    "routing": {
        "rules": [
            {"name": "acme", "tenants": ["acme"], "mx": {"tls": {"mode": "Required"}}},
            {
                "name": "partners",
                "domains": ["partner.example", "*.partner.example"],
                "hops": [
                    {"host": "smtp.relay.example", "tls": {"mode": "Required"}, "login": LOGIN}
                ],
            },
        ],
        "mx": {
            "tls": {"honours": ["STS"]},
            "source": {"addresses": ["192.0.2.1"], "ehloName": "a.example"},
        },
        "resolver": {"timeout": "1m30s"},
    },
    "signing": [{"domain": "example.org", "keys": [{"selector": "r2026a", "secretRef": DKIM}]}],
}


def test_the_program_reads_what_the_resource_has_with_files_in_place_of_secrets(
    tmp_path: Path,
) -> None:
    pod = WorkerPod(workers=BY_MX, delivery=DELIVERY)

    read = pod.read(tmp_path)

    declared = DeliverySettings.model_validate(DELIVERY)
    assert read.routing
    assert declared.routing
    assert read.routing.mx == declared.routing.mx
    assert read.routing.resolver == declared.routing.resolver
    acme, partners = read.routing.rules
    assert acme == declared.routing.rules[0]
    assert partners.domains == ("partner.example", "*.partner.example")
    login = partners.rule().tiers[0][0].next_hop.login
    assert isinstance(login, HopLogin)
    assert pod.secret_of(login.folder / "username") == "relay-login"
    (key,) = read.signing[0].keys
    assert key.file
    assert key.file.name == "r2026a.pem"
    assert pod.secret_of(key.file) == "dkim.example.org"


def test_policies_of_mta_sts_have_a_folder_that_the_pod_may_write_to(tmp_path: Path) -> None:
    """Whether one is honoured or not, so that pods stay when one is."""
    pod = WorkerPod(workers=BY_MX)

    routing = pod.read(tmp_path).routing

    assert routing
    assert routing.sts.folder
    assert "emptyDir" in pod.mounted[str(routing.sts.folder)]
    own = DELIVERY | {"routing": {"sts": {"folder": "/var/lib/policies"}}}
    routing = WorkerPod(workers=BY_MX, delivery=own).read(tmp_path).routing
    assert routing
    assert routing.sts.folder == Path("/var/lib/policies")


def test_workers_with_a_relay_have_the_keys_alone(tmp_path: Path) -> None:
    signing = {"signing": DELIVERY["signing"]}
    pod = WorkerPod(workers=workers(), delivery=signing)

    read = pod.read(tmp_path)

    assert read.routing is None
    assert read.signing
    assert pod.variables["POSTROAD_WORKER_DELIVERY_FILE"]
    assert "mta-sts" not in str(pod.pod)


@pytest.mark.parametrize(
    "handler",
    [
        {"webhook": {"url": "http://app/mail", "secretRef": {"name": "webhook"}}},
        {"function": {"name": "app.mail:deliver"}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_workers_with_a_program_have_limits_and_the_list(
    tmp_path: Path, handler: dict[str, Any]
) -> None:
    limits = [{"name": "all", "perMinute": 60}]
    delivery = {"limits": limits, "suppression": {"bounces": ["NoMailbox"]}}
    pod = WorkerPod(workers={"replicas": 0, "handler": handler}, delivery=delivery)

    read = pod.read(tmp_path)

    (limit,) = read.limits
    assert (limit.name, limit.per_minute) == ("all", 60)
    rules = read.suppression_rules()
    assert rules == SuppressionRules(frozenset({BounceClass.NO_MAILBOX}))


EVENTS = {
    "events": [
        {
            "name": "crm",
            "webhook": "https://crm.example:8443/hook",
            "secret": {"secretRef": {"name": "crm", "key": "webhook"}},
        }
    ]
}


def test_streams_of_events_are_read_by_workers_and_without_their_secrets_by_the_intake(
    tmp_path: Path,
) -> None:
    pod = WorkerPod(workers=BY_MX, delivery=DELIVERY | EVENTS)

    (stream,) = pod.read(tmp_path).events
    assert stream.secret
    assert stream.secret.file
    assert pod.secret_of(stream.secret.file) == "crm"
    intake_pod = pod.children["Deployment", "outgoing-intake"]["spec"]["template"]["spec"]
    (container,) = intake_pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["POSTROAD_WORKER_DELIVERY_FILE"] == str(pod.file)
    named = [each.get("configMap", {}).get("name") for each in intake_pod["volumes"]]
    assert "outgoing-delivery" in named
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(pod.file.parent) in mounted
    assert not any("secret" in each for each in intake_pod["volumes"])


def test_neither_the_intake_nor_workers_without_delivery_have_a_file() -> None:
    with_file = WorkerPod(workers=BY_MX, delivery=DELIVERY)
    without = WorkerPod(workers={"handler": {"function": {"name": "app:f"}}})

    assert "delivery" not in str(with_file.children["Deployment", "outgoing-intake"]["spec"])
    assert ("ConfigMap", "outgoing-delivery") not in without.children
    assert "POSTROAD_WORKER_DELIVERY_FILE" not in without.variables


async def declared(operator: RunningController) -> None:
    """Declare a queue with the Secrets that its delivery names."""
    await operator.create(secret(NAMESPACE, "relay-login", {"username": "u", "password": "p"}))
    key = {"r2026a.pem": ed25519_pem().decode()}
    await operator.create(secret(NAMESPACE, "dkim.example.org", key))
    await operator.declare(workers=BY_MX, intake=intake(), delivery=DELIVERY)
    assert operator.condition("Ready")["status"] == "True"


def file_of(operator: RunningController) -> str:
    found = operator.at("configmaps", NAMESPACE, "outgoing-delivery")
    assert found
    return str(found["data"]["delivery.yaml"])


def template_of(operator: RunningController) -> Any:
    found = operator.at("deployments", NAMESPACE, "outgoing-worker")
    assert found
    return found["spec"]["template"]


PARTNERS_ALONE = {"rules": DELIVERY["routing"]["rules"][1:], "mx": {"tls": {"mode": "Encrypted"}}}
OTHER_KEY = [{"selector": "r2026b", "secretRef": DKIM | {"key": "r2026b.pem"}}]


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"routing": PARTNERS_ALONE}, False),
        ({"signing": [{"domain": "example.org", "keys": OTHER_KEY}]}, False),
        ({"signing": []}, True),
    ],
    ids=["other routes", "another key", "another set of Secrets"],
)
def test_a_change_reaches_the_file_and_replaces_pods_for_another_set_of_secrets_alone(
    change: dict[str, Any], replaced: bool
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator)
            key = secret(NAMESPACE, "x", {"r2026b.pem": ed25519_pem(1).decode()})["data"]
            await operator.user.patch(SECRET, NAMESPACE, "dkim.example.org", {"data": key})
            before, file = template_of(operator), file_of(operator)

            await operator.change({"delivery": change})
            await move(10)

            assert operator.condition("Ready")["status"] == "True"
            assert file_of(operator) != file
            assert (template_of(operator) != before) is replaced

    run(scene())


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "dkim.example.org",
            {"r2026a.pem": None},
            "signing[0].keys[0].secretRef: Secret mail/dkim.example.org has no key r2026a.pem",
        ),
        (
            "dkim.example.org",
            {"r2026a.pem": "bm8ga2V5"},
            "r2026a.pem` of Secret mail/dkim.example.org cannot sign: it is no private key in PEM",
        ),
        (
            "relay-login",
            {"password": None},
            "spec.delivery.routing.rules[0].hops[0].login.secretRef: ",
        ),
    ],
    ids=["no key", "no private key", "no password"],
)
def test_a_secret_without_what_it_is_for_is_a_condition_and_all_stays_as_it_is(
    name: str, data: dict[str, Any], said: str
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator)
            before, file = template_of(operator), file_of(operator)
            found = await operator.user.get(SECRET, NAMESPACE, name)
            assert found

            await operator.user.patch(SECRET, NAMESPACE, name, {"data": data})
            await operator.change({"delivery": {"routing": PARTNERS_ALONE}})
            await move(LONGER_THAN_A_FULL_RECONCILE)

            condition = operator.condition("WorkersReady")
            assert (condition["status"], condition["reason"]) == ("False", "CredentialsMissing")
            assert said in condition["message"]
            assert "bm8ga2V5" not in condition["message"]
            assert (template_of(operator), file_of(operator)) == (before, file)
            await operator.user.patch(SECRET, NAMESPACE, name, {"data": found["data"]})
            await move(LONGER_THAN_A_FULL_RECONCILE)
            assert operator.condition("Ready")["status"] == "True"
            assert file_of(operator) != file

    run(scene())


def test_rules_that_the_api_server_cannot_judge_are_a_condition_with_what_to_do() -> None:
    rules = [
        {"name": "all", "mx": {}},
        {"name": "never", "domains": ["example.org"], "mx": {"tls": {"mode": "Required"}}},
    ]

    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator)
            before, file = template_of(operator), file_of(operator)

            await operator.change({"delivery": {"routing": {"rules": rules}}})
            await move(10)

            ready = operator.condition("Ready")
            assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
            assert "spec.delivery.routing: " in ready["message"]
            assert "rule never is never reached, because all before it" in ready["message"]
            assert (template_of(operator), file_of(operator)) == (before, file)

    run(scene())


def test_workers_that_are_gone_leave_no_file() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declared(operator)

            await operator.change({"workers": None})
            await move(10)

            assert operator.at("configmaps", NAMESPACE, "outgoing-delivery") is None

    run(scene())


async def test_a_relay_is_written_into_the_file_of_delivery_with_all_its_fields(
    tmp_path: Path,
) -> None:
    relay = {
        "host": "sink",
        "port": 2525,
        "tls": {
            "mode": "Required",
            "minVersion": "TLS13",
            "caRef": {"kind": "ConfigMap", "name": "theirs"},
        },
        "protocol": "LMTP",
        "verp": True,
        "source": {"addresses": ["192.0.2.1"]},
        "login": LOGIN | {"mechanism": "XOAUTH2"},
    }
    pod = WorkerPod(workers={"handler": {"relay": relay}})

    hop = pod.read(tmp_path).relay

    assert hop is not None
    assert hop.tls.ca_file is not None
    volume = pod.mounted[str(hop.tls.ca_file.parent)]
    assert volume["configMap"]["name"] == "theirs"
    assert [each["path"] for each in volume["configMap"]["items"]] == [hop.tls.ca_file.name]
    assert hop.login is not None
    assert hop.login.folder is not None
    assert pod.secret_of(hop.login.folder / "username") == "relay-login"
    assert hop.next_hop() == NextHop(
        "sink",
        2525,
        TlsMode.REQUIRED,
        Protocol.LMTP,
        HopLogin(hop.login.folder, Mechanism.XOAUTH2),
        OldestTls.TLS_1_3,
        SourceAddresses(("192.0.2.1",)),
        verp=True,
        authorities=hop.tls.ca_file,
    )
    assert not any("RELAY" in name for name in pod.variables)


def test_authorities_of_a_secret_are_mounted_without_its_keys() -> None:
    pod = WorkerPod(
        workers={
            "handler": {"relay": {"host": "a", "tls": {"mode": "Required", "caRef": {"name": "s"}}}}
        }
    )

    (volume,) = [
        each["secret"]
        for folder, each in pod.mounted.items()
        if folder.startswith("/etc/postroad/delivery-authorities/")
    ]
    assert volume["secretName"] == "s"
    assert volume["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_a_changed_relay_replaces_no_pod_and_another_way_does() -> None:
    pods = [
        WorkerPod(workers={"handler": {"relay": relay}}).pod
        for relay in (
            {"host": "a.example"},
            {"host": "b.example", "port": 587},
            {"host": "a.example", "lookUp": "MX"},
        )
    ]

    assert pods[0] == pods[1]
    assert pods[0] != pods[2]
