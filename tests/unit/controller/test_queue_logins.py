"""Users at RabbitMQ that the operator makes for MailQueues, rotates and deletes."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from postroad.controller.kubernetes.api import MAIL_QUEUE, QUEUE_CLUSTER, ROTATE, SECRET
from postroad.controller.reads import PATIENCE
from postroad.domain.queues.broker_users import QueueUser
from postroad.ports.kubernetes import Object
from support.manual_loop import move, run
from support.memory.fault_injection import Fault, Step
from support.resources import intake, mail_queue, queue_cluster, secret, secrets, workers
from support.running_controller import NAMESPACE, RunningController, running_controller

USERS = {"users": {"overlap": "10m"}}
OVERLAP, A_FULL_RECONCILE, A_MINUTE = 600, 360, 70
LOGIN = "outgoing-rabbitmq"


def cluster(**users: Any) -> Object:
    """Return a QueueCluster that asks for users."""
    found = queue_cluster(NAMESPACE)
    rabbitmq = {
        **found["spec"]["rabbitmq"],
        "managementURL": "http://rabbitmq:15672",
        "users": {"overlap": "10m", **users},
    }
    return {**found, "spec": {**found["spec"], "rabbitmq": rabbitmq}}


async def declare(operator: RunningController, users: dict[str, Any] | None = None) -> None:
    """Create a MailQueue with both kinds of pods."""
    for each in (*secrets(NAMESPACE), cluster(**(users or {}))):
        await operator.create(each)
    await operator.create(mail_queue(NAMESPACE, workers=workers(), intake=intake()))
    await move(10)


async def ask(operator: RunningController, value: str) -> None:
    """Ask for another user, as an administrator does."""
    change = {"metadata": {"annotations": {ROTATE: value}}}
    assert await operator.user.patch(MAIL_QUEUE, NAMESPACE, "outgoing", change)


def login(operator: RunningController, name: str = LOGIN) -> tuple[str, str]:
    """Return the name and the password in the Secret."""
    data = operator.found(SECRET, name)["data"]
    user, password = (base64.b64decode(data[each]).decode() for each in ("username", "password"))
    return user, password


def letters(operator: RunningController, name: str = "outgoing") -> str:
    """Return which users of a queue exist."""
    found = [QueueUser.parse(each) for each in operator.world.users]
    return "".join(sorted(each.suffix for each in found if each and each.queue.name == name))


def is_let_in(operator: RunningController) -> bool:
    """Whether RabbitMQ knows the login of the Secret."""
    user, password = login(operator)
    found = operator.world.users.get(user)
    return found is not None and found.password == password and found.has_rights


def templates(operator: RunningController) -> list[Object]:
    return [
        each["spec"]["template"]
        for (plural, *_), each in operator.kubernetes.objects.items()
        if plural == "deployments"
    ]


def test_no_user_is_made_unless_the_queuecluster_asks_for_it() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await operator.declare(workers=workers())

            assert operator.world.users == {}
            assert operator.at("secrets", NAMESPACE, LOGIN) is None
            assert "outgoing-rabbitmq" not in json.dumps(templates(operator))

    run(scene())


def test_pods_have_the_login_of_their_queue_instead_of_the_clusters() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)

            assert operator.condition("Ready")["status"] == "True"
            assert letters(operator) == "a"
            assert is_let_in(operator)
            (owner,) = operator.found(SECRET, LOGIN)["metadata"]["ownerReferences"]
            assert owner["uid"] == operator.found()["metadata"]["uid"]
            for each in templates(operator):
                volumes = {volume["name"]: volume for volume in each["spec"]["volumes"]}
                (source,) = volumes["rabbitmq"]["projected"]["sources"]
                assert source["secret"]["name"] == LOGIN

    run(scene())


def test_another_user_is_made_when_it_is_asked_for_and_the_former_stays_for_the_overlap() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            before, pods = login(operator), templates(operator)

            await ask(operator, "once")
            await move(10)
            after = login(operator)
            assert letters(operator) == "ab"
            assert operator.world.users[before[0]].password == before[1]
            assert is_let_in(operator)
            await move(OVERLAP - 30)
            assert letters(operator) == "ab"
            await move(A_FULL_RECONCILE)

            assert letters(operator) == "b"
            assert login(operator) == after
            assert after[0] != before[0]
            assert after[1] != before[1]
            assert templates(operator) == pods
            (event,) = operator.events("UserSwitched")
            assert after[0] in event["note"]

    run(scene())


def test_one_value_of_the_annotation_asks_once_and_the_next_waits_for_the_overlap() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            await ask(operator, "once")
            await move(10)
            first = login(operator)
            await ask(operator, "twice")
            await move(A_FULL_RECONCILE)
            assert login(operator) == first

            await move(OVERLAP)
            assert login(operator)[0].endswith(".a")
            await move(10 * OVERLAP)

            assert len(operator.events("UserSwitched")) == 2
            assert letters(operator) == "a"

    run(scene())


def test_users_are_rotated_after_a_clock_was_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            ahead, now = timedelta(days=1000), operator.clock.now
            with monkeypatch.context() as patch:
                patch.setattr(operator.clock, "now", lambda: now() + ahead)
                await move(A_FULL_RECONCILE)
                assert letters(operator) == "ab", "the period is over"
                user, _ = login(operator)
            await move(OVERLAP + 2 * A_FULL_RECONCILE)
            assert letters(operator) == "b"
            assert is_let_in(operator)

            await ask(operator, "1")
            await move(A_MINUTE)
            assert letters(operator) == "ab"
            assert login(operator)[0] != user
            assert is_let_in(operator)

    run(scene())


def test_users_are_rotated_by_time() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator, {"period": "1h"})
            seen = set()
            for _ in range(12):
                seen.add(login(operator))
                assert is_let_in(operator)
                await move(OVERLAP)

            assert len(seen) == 2

    run(scene())


@pytest.mark.parametrize("which", ["deleted", "changed"])
def test_a_user_that_others_change_or_delete_is_as_declared_again(which: str) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            before = login(operator)
            if which == "deleted":
                operator.world.users.clear()
            else:
                operator.world.users[before[0]].has_rights = False

            await move(A_FULL_RECONCILE)

            assert login(operator) == before
            assert is_let_in(operator)
            (event,) = operator.events("Repaired")
            assert f"{before[0]} of RabbitMQ was {which}" in event["note"]

    run(scene())


@pytest.mark.parametrize("data", [None, {"username": "Z3Vlc3Q="}, {"password": "?"}])
def test_a_secret_that_is_lost_or_cannot_be_used_is_made_anew(data: dict[str, str] | None) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            if data is None:
                await operator.delete(SECRET, LOGIN)
            else:
                await operator.user.patch(SECRET, NAMESPACE, LOGIN, {"data": data})

            await move(A_FULL_RECONCILE)

            assert is_let_in(operator)

    run(scene())


def test_a_secret_of_another_owner_is_left_alone() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            foreign = secret(NAMESPACE, LOGIN, {"username": "other", "password": "other"})
            await operator.create(foreign)

            await declare(operator)

            assert operator.found(SECRET, LOGIN)["data"] == foreign["data"]
            assert operator.condition("BrokerReady")["reason"] == "NameTaken"
            assert operator.world.users == {}

    run(scene())


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_the_users_of_a_queue_go_with_it_and_those_of_others_stay(policy: str) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            await operator.create(mail_queue(NAMESPACE, "second"))
            await operator.change({"deletionPolicy": policy})
            await ask(operator, "once")
            await move(15)
            assert letters(operator) == "ab"
            foreign = "postroad.mail.outgoing.0123456789ab.a"
            operator.world.users[foreign] = operator.world.users[login(operator)[0]]

            await operator.delete(MAIL_QUEUE, "outgoing")
            await move(A_MINUTE)
            assert (letters(operator) == "aab") is (policy == "Retain"), "it may come back"
            await move(PATIENCE.total_seconds() + A_MINUTE)

            assert operator.at("mailqueues", NAMESPACE, "outgoing") is None
            assert letters(operator) == "a"  # the other QueueCluster's
            assert foreign in operator.world.users
            assert letters(operator, "second") == "a"

    run(scene())


def test_users_of_a_queue_that_went_while_no_operator_ran_go_when_one_runs() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
        await operator.delete(MAIL_QUEUE, "outgoing")
        assert letters(operator) == "a"

        async with running_controller(beside=operator) as second:
            await move(PATIENCE.total_seconds() + 2 * A_MINUTE)
            assert letters(second) == ""

    run(scene())


def test_an_operator_of_one_namespace_leaves_the_users_of_others_alone() -> None:
    async def scene() -> None:
        async with running_controller(namespaces=(NAMESPACE,)) as operator:
            await declare(operator)
            user = QueueUser.parse(login(operator)[0])
            assert user is not None
            other = str(user).replace("postroad.mail.", "postroad.another.")
            operator.world.users[other] = operator.world.users[str(user)]

            await move(A_MINUTE)

            assert other in operator.world.users

    run(scene())


def test_without_the_right_to_write_secrets_no_pods_are_made_and_a_condition_names_it() -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            operator.api.refused |= {("create", "secrets"), ("patch", "secrets")}
            await declare(operator)

            broker, pods = operator.condition("BrokerReady"), operator.condition("WorkersReady")
            assert (broker["reason"], pods["reason"]) == ("KubernetesRefused", "CredentialsMissing")
            assert "secrets is forbidden" in broker["message"]
            assert templates(operator) == []

            operator.api.refused.clear()
            await move(A_MINUTE)
            assert operator.condition("Ready")["status"] == "True"
            assert is_let_in(operator)

    run(scene())


def test_a_password_stands_in_its_secret_alone(capsys: pytest.CaptureFixture[str]) -> None:
    passwords: set[str] = set()

    async def scene() -> None:
        async with running_controller() as operator:
            await declare(operator)
            passwords.add(login(operator)[1])
            await ask(operator, "once")
            await move(10)
            passwords.add(login(operator)[1])
            operator.world.users.clear()
            await move(A_FULL_RECONCILE)

            others = [
                each
                for (plural, _, name), each in operator.kubernetes.objects.items()
                if (plural, name) != ("secrets", LOGIN)
            ]
            for each in passwords:
                assert each not in json.dumps(others)
                assert base64.b64encode(each.encode()).decode() not in json.dumps(others)
                assert each not in repr(operator.world.users)
                assert each not in str(operator.calls)

    run(scene())

    output = capsys.readouterr()
    assert len(passwords) == 2
    assert not any(each in output.out + output.err for each in passwords)


@dataclass
class Kills:
    """Kills the operator behind one of its calls that may have an effect."""

    at: int | None = None
    calls: list[str] = field(default_factory=list)

    def plan(self, step: Step) -> Fault | None:
        is_about_users = step.operation.endswith(" user") or "secrets" in step.operation
        if not is_about_users or step.operation.startswith("get "):
            return None
        self.calls.append(step.operation)
        return Fault.STOP_AFTER if len(self.calls) - 1 == self.at else None


async def rotated(kills: Kills) -> None:
    """Let an operator make a user and rotate it; when it is killed, another one follows."""
    async with running_controller() as first:
        first.api.faults = first.faults
        first.faults.plan = kills.plan
        await declare(first)
        if not first.faults.stopped:
            await ask(first, "once")
            await move(OVERLAP + A_FULL_RECONCILE)
    async with running_controller(beside=first) as second:
        await ask(second, "once")
        for _ in range(20):
            await move(60)
            assert is_let_in(second), kills
        assert letters(second) == login(second)[0][-1], kills
        assert second.condition("Ready")["status"] == "True"
        assert second.events("Repaired") == [], kills
        assert second.condition("Ready", QUEUE_CLUSTER, "main")["status"] == "True"


def test_after_a_kill_behind_any_step_the_next_operator_ends_with_one_user() -> None:
    counted = Kills()
    run(rotated(counted))

    for position in range(len(counted.calls)):
        run(rotated(Kills(position)))

    assert len(counted.calls) >= 5
