"""The Secrets of an intake: checked by the operator, renewed without a rollout."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from postroad.controller.kubernetes.api import CONFIG_MAP, DEPLOYMENT, SERVICE
from postroad.intake.logins.passwords import record_of
from postroad.intake_settings.user_file import UserFile, written
from postroad.ports.kubernetes import Object
from support.certificates import Certificates
from support.resources import intake, mail_queue, relay, secret
from support.running_operator import Running
from support.spec_cases import SUBMISSION, TLS, USERS

pytestmark = pytest.mark.needs("kubernetes")

STARTTLS = intake(listeners=[relay(tls=TLS)])


@pytest.fixture
def pair(tmp_path: Path) -> dict[str, str]:
    """What a Secret of type kubernetes.io/tls holds."""
    return made(tmp_path, "first")


def made(folder: Path, name: str) -> dict[str, str]:
    (folder / name).mkdir()
    files = Certificates.make(folder / name)
    return {"tls.crt": files.chain.read_text(), "tls.key": files.key.read_text()}


def is_false(found: Mapping[str, Object]) -> bool:
    """Whether a status has IntakeReady False; while the queue is created it has no IntakeReady."""
    return bool(found.get("IntakeReady", {}).get("status") == "False")


async def intake_pods(operator: Running) -> Object:
    """Return the template of the intake's pods."""
    found = await operator.api.get(DEPLOYMENT, operator.namespace, "outgoing-intake")
    assert found is not None
    template: Object = found["spec"]["template"]
    return template


async def test_a_missing_certificate_is_named_and_waited_for(
    operator: Running, pair: dict[str, str]
) -> None:
    await operator.apply_cluster()
    await operator.apply(mail_queue(operator.namespace, intake=STARTTLS))
    conditions = await operator.until(is_false)

    assert conditions["IntakeReady"]["reason"] == "CredentialsMissing"
    assert "Secret intake-tls" in conditions["IntakeReady"]["message"]
    assert "`tls.crt` and `tls.key`" in conditions["IntakeReady"]["message"]
    assert conditions["Reconciling"]["status"] == "True"
    assert conditions["BrokerReady"]["status"] == "True"

    await operator.apply(secret(operator.namespace, "intake-tls", pair))
    await operator.until_ready()


@pytest.mark.parametrize("damage", ["no certificate", "another key"])
async def test_a_condition_names_a_secret_without_a_pair_and_not_its_key(
    operator: Running, pair: dict[str, str], tmp_path: Path, damage: str
) -> None:
    other = made(tmp_path, "other")
    wrong = (
        {"tls.crt": "secret-text"} if damage == "no certificate" else {"tls.key": other["tls.key"]}
    )
    await operator.apply_cluster()
    await operator.apply(secret(operator.namespace, "intake-tls", pair | wrong))
    await operator.apply(mail_queue(operator.namespace, intake=STARTTLS))
    conditions = await operator.until(is_false)

    assert conditions["IntakeReady"]["reason"] == "CertificateUnusable"
    assert "`tls.crt` and `tls.key`" in conditions["IntakeReady"]["message"]
    assert conditions["Stalled"]["reason"] == "CertificateUnusable"
    said = json.dumps([conditions, await operator.events()])
    assert "PRIVATE KEY" not in said
    assert "secret-text" not in said

    await operator.apply(secret(operator.namespace, "intake-tls", pair))
    await operator.until_ready()


async def test_a_renewed_certificate_rolls_no_pod(
    operator: Running, pair: dict[str, str], tmp_path: Path
) -> None:
    await operator.apply_cluster()
    await operator.apply(secret(operator.namespace, "intake-tls", pair))
    await operator.apply(mail_queue(operator.namespace, intake=STARTTLS))
    await operator.until_ready()
    before = await intake_pods(operator)

    await operator.apply(secret(operator.namespace, "intake-tls", made(tmp_path, "second")))
    await operator.settle()

    assert await intake_pods(operator) == before


async def test_the_service_follows_the_ports(operator: Running, pair: dict[str, str]) -> None:
    async def until(ports: dict[str, int]) -> None:
        found: dict[str, int] = {}
        for _ in range(200):
            service = await operator.api.get(SERVICE, operator.namespace, "outgoing-intake")
            found = {
                each["name"]: each["port"]
                for each in (service or {"spec": {"ports": []}})["spec"]["ports"]
            }
            if found == ports:
                return
            await asyncio.sleep(0.1)
        assert found == ports

    async def change(*listeners: Object) -> None:
        await operator.change({"intake": {"listeners": [*listeners]}})

    implicit = TLS | {"mode": "Implicit"}
    await operator.apply_cluster()
    await operator.apply(secret(operator.namespace, "intake-tls", pair))
    await operator.apply(mail_queue(operator.namespace, intake=intake(listeners=[relay()])))
    await until({"smtp": 2525})

    await change(relay(port=2500), relay(name="smtps", port=465, tls=implicit))
    await until({"smtp": 2500, "smtps": 465})
    await change(relay(name="smtps", port=465, tls=implicit))
    await until({"smtps": 465})
    await change(relay(port=465, tls=TLS))
    await until({"smtp": 465})
    await operator.until_ready()


async def test_users_are_a_file_that_a_secret_has_and_another_one_rolls_no_pod(
    operator: Running, pair: dict[str, str]
) -> None:
    def users(*names: str) -> Object:
        records = tuple(record_of(each, "secret-word") for each in names)
        text = written(UserFile(secret="s" * 32, users=records))
        return secret(operator.namespace, "users", {"users.yaml": text})

    declared = intake(listeners=[SUBMISSION], users=USERS)
    await operator.apply_cluster()
    await operator.apply(secret(operator.namespace, "intake-tls", pair))
    await operator.apply(secret(operator.namespace, "users", {"users": "secret-word"}))
    await operator.apply(mail_queue(operator.namespace, intake=declared))
    conditions = await operator.until(is_false)
    assert conditions["IntakeReady"]["reason"] == "CredentialsMissing"
    assert "spec.intake.users.secretRef" in conditions["IntakeReady"]["message"]
    assert "has no key users.yaml" in conditions["IntakeReady"]["message"]

    await operator.apply(users("a@origin.example"))
    await operator.until_ready()
    before = await intake_pods(operator)
    file = await operator.api.get(CONFIG_MAP, operator.namespace, "outgoing-intake")
    assert file
    assert "users.yaml" in file["data"]["intake.yaml"]
    assert "argon2" not in json.dumps([file, before, await operator.conditions()])

    await operator.apply(users("a@origin.example", "b@origin.example"))
    await operator.settle()
    assert await intake_pods(operator) == before
