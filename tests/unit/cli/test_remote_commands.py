"""`kubectl mailqueue browse …`: the day-2 commands, run in a pod of the queue.

A script stands in for `kubectl` and records its calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from postroad.cli import KUBECTL_COMMANDS, kubectl_mailqueue, main
from postroad.cli.kubectl.plugin import Kubectl
from support import fake_kubectl
from support.fake_kubectl import answer, calls, executed, folder

__all__ = ["folder"]

OF_RESOURCES = ("plan", "adopt", "status", "events", "top", "config", "console", "migrate")
DAY_2 = sorted(KUBECTL_COMMANDS.keys() - {*OF_RESOURCES})
MIGRATION = ("migrate", "james", "outgoing", "spool", "--secret", "his")
SUPPRESSION = ("add", "remove", "list", "import", "export")
CLUSTER = {
    "rabbitmq": {"url": "amqp://rabbitmq:5672/%2F", "secretRef": {"name": "rabbitmq"}},
    "cassandra": {
        "contactPoints": ["cassandra"],
        "keyspace": "postroad",
        "secretRef": {"name": "cassandra"},
        "tls": {"mode": "VerifyFull", "caRef": {"name": "ours"}},
    },
    "s3": {"url": "http://s3:9000", "secretRef": {"name": "s3"}},
}


def pod(name: str, container: str, *, ready: bool = True, **metadata: str) -> dict[str, Any]:
    status = {"name": container, "ready": ready, "state": {"running": {}}}
    return {"metadata": {"name": name} | metadata, "status": {"containerStatuses": [status]}}


@pytest.fixture
def queue(folder: Path) -> Path:
    """A MailQueue `outgoing` with a running worker."""
    resource = {
        "kind": "MailQueue",
        "metadata": {"namespace": "mail", "name": "outgoing", "uid": "1", "generation": 1},
        "spec": {"clusterRef": {"name": "main"}},
    }
    (folder / "outgoing.json").write_text(json.dumps(resource))
    fake_kubectl.put_list(folder, "pods", [pod("outgoing-worker-1", "worker")])
    answer(folder, "")
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(kubectl_mailqueue, arguments)


def command(folder: Path) -> list[str]:
    """What runs in the pod."""
    words = executed(folder)
    return words[words.index("--") + 1 :]


def test_a_command_runs_in_a_pod_of_the_queue_and_its_output_is_passed_on(
    queue: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answer(queue, '{"size": 7}\n', stderr="a warning\n")

    result = run("size", "outgoing", "-n", "other", "--json")

    assert result.exit_code == 0, result.output
    assert capfd.readouterr().out == '{"size": 7}\n'
    assert result.stderr == "a warning\n"
    assert executed(queue)[:6] == [
        *("exec", "--namespace", "other", "outgoing-worker-1", "--container", "worker")
    ]
    assert command(queue) == [
        *("postroad", "size", "--queue", "distributed://other.outgoing", "--json")
    ]


@pytest.mark.parametrize("code", [1, 2, 75])
def test_the_exit_code_is_that_of_the_command(queue: Path, code: int) -> None:
    answer(queue, "", code=code, stderr="postroad: no mail waits under this id\n")

    result = run("show", "outgoing", "00000000-0000-0000-0000-000000000000")

    assert result.exit_code == code
    assert result.stderr == "postroad: no mail waits under this id\n"


def test_every_option_reaches_the_command_as_it_was_written(queue: Path) -> None:
    given = (
        *("--sender=<>", "--recipient=it's me@x.example", "--name=-n", "--domain=x.example"),
        *("--older-than=90m", "--attribute=a=b c", "--limit=5", "--json"),
        "--id=00000000-0000-0000-0000-000000000000",
    )
    result = run("browse", "outgoing", *given)

    assert result.exit_code == 0, result.output
    assert sorted(command(queue)[4:]) == sorted(given)
    parsed = main.get_command(None, "browse").make_context("browse", command(queue)[2:])  # type: ignore[union-attr, arg-type]
    assert parsed.params["sender"] == "<>"
    assert parsed.params["recipient"] == "it's me@x.example"


@pytest.mark.parametrize(
    "arguments",
    [
        ("browse", "outgoing", "--older-than", "a while"),
        ("browse", "outgoing", "--limit", "0"),
        ("show", "outgoing", "7"),
        ("republish", "outgoing"),
        ("size",),
        ("size", "Out_Going"),
    ],
    ids=" ".join,
)
def test_usage_errors_come_before_any_call_of_kubectl(
    queue: Path, arguments: tuple[str, ...]
) -> None:
    assert run(*arguments).exit_code == 2
    assert not (queue / "executed").exists()


NOT_OF_A_POD = {"--queue", "--spark", "--deep", "--master"}
"""Options for what a pod of the queue does not have."""


def in_groups(group: click.Group, words: Sequence[str]) -> click.Command:
    found: click.Command = group
    for word in words:
        assert isinstance(found, click.Group)
        below = found.get_command(click.Context(found), word)
        assert below is not None
        found = below
    return found


@pytest.mark.parametrize(
    "words",
    [*((each,) for each in DAY_2), *(("suppression", each) for each in SUPPRESSION)],
    ids=" ".join,
)
def test_a_command_has_the_options_that_it_has_for_a_url(words: tuple[str, ...]) -> None:
    local, remote = in_groups(main, words), in_groups(kubectl_mailqueue, words)
    assert run(*words, "--help").exit_code == 0
    if isinstance(local, click.Group):
        assert isinstance(remote, click.Group)
        assert local.commands.keys() == remote.commands.keys() == {*SUPPRESSION}
        return

    theirs = {each for param in remote.params for each in param.opts}

    assert {each for param in local.params for each in param.opts} - NOT_OF_A_POD <= theirs
    assert not {"--queue", "--spark", "--master"} & theirs
    assert {"--namespace", "--context", "--kubeconfig"} <= theirs


def test_addresses_of_a_suppression_list_reach_the_command_as_they_were_written(
    queue: Path,
) -> None:
    given = ("--tenant=acme", "--reason=asked for it", "--", "-x@d.example", "it's@d.example")
    result = run("suppression", "add", "outgoing", "-n", "mail", *given)

    assert result.exit_code == 0, result.output
    assert command(queue)[:5] == [
        *("postroad", "suppression", "add", "--queue", "distributed://mail.outgoing")
    ]
    assert sorted(command(queue)[5:]) == sorted((*given, "--plain"))
    assert command(queue)[-2:] == ["-x@d.example", "it's@d.example"]
    assert not (queue / "stdin").exists()


def test_a_file_of_this_machine_is_put_on_a_suppression_list(queue: Path) -> None:
    file = queue / "unsubscribed.txt"
    file.write_bytes(b"a@d.example\n\xff@d.example\n")

    assert run("suppression", "import", "outgoing", str(file)).exit_code == 0

    assert command(queue)[2] == "import"
    assert "-" in command(queue)
    assert (queue / "stdin").read_bytes() == file.read_bytes()
    assert run("suppression", "import", "outgoing", str(queue / "none")).exit_code == 2


@pytest.mark.parametrize(
    ("delivery", "option", "expected"),
    [
        (None, (), "--plain"),
        ({"suppression": {"bounces": []}}, (), "--plain"),
        ({"suppression": {"addresses": "Hashed"}}, (), "--hashed"),
        ({"suppression": {"addresses": "Hashed"}}, ("--plain",), "--plain"),
        ({}, ("--hashed",), "--hashed"),
    ],
)
def test_addresses_are_kept_as_the_resource_has_it(
    queue: Path, delivery: dict[str, Any] | None, option: tuple[str, ...], expected: str
) -> None:
    """Whatever pod runs: those of an intake have no file of delivery."""
    fake_kubectl.put_list(queue, "pods", [pod("outgoing-intake-1", "intake")])
    resource = json.loads((queue / "outgoing.json").read_text())
    resource["spec"]["delivery"] = delivery
    (queue / "outgoing.json").write_text(json.dumps(resource))

    assert run("suppression", "add", "outgoing", *option, "a@d.example").exit_code == 0

    assert [each for each in command(queue) if each in ("--plain", "--hashed")] == [expected]


def test_a_ready_pod_is_chosen_before_others(queue: Path) -> None:
    pods = [
        pod("a-going", "worker", deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("b-unready", "worker", ready=False),
        pod("c-sidecar", "proxy"),
        pod("d-intake", "intake"),
        {"metadata": {"name": "e-pending"}, "status": {"phase": "Pending"}},
    ]
    fake_kubectl.put_list(queue, "pods", pods)

    assert run("size", "outgoing").exit_code == 0

    assert executed(queue)[3:6] == ["d-intake", "--container", "intake"]


def test_without_a_running_pod_one_is_made_as_the_deployment_would_and_deleted(
    queue: Path,
) -> None:
    container = {
        "name": "worker",
        "image": "registry/postroad:1",
        "args": ["worker"],
        "envFrom": [{"configMapRef": {"name": "outgoing-queue"}}],
        "readinessProbe": {},
    }
    template = {"spec": {"containers": [{"name": "proxy"}, container]}}
    fake_kubectl.put_list(queue, "pods", [])
    fake_kubectl.put_list(queue, "deployments", [{"spec": {"template": template}}])
    answer(queue, "", code=1)

    assert run("purge", "outgoing").exit_code == 1

    made = json.loads((queue / "created.json").read_text())
    (only,) = made["spec"]["containers"]
    assert (only["image"], only["envFrom"]) == (container["image"], container["envFrom"])
    assert "readinessProbe" not in only
    assert "args" not in only
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["spec"]["activeDeadlineSeconds"] > 0
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "command"
    assert executed(queue)[3] == made["metadata"]["name"]
    done = [line.split()[0] for line in calls(queue)]
    assert done[-4:] == ["create", "wait", "exec", "delete"]

    assert run("purge", "outgoing", "--image", "registry/postroad:2").exit_code == 1

    (only,) = json.loads((queue / "created.json").read_text())["spec"]["containers"]
    assert (only["image"], only["envFrom"]) == ("registry/postroad:2", container["envFrom"])


def test_a_command_that_is_interrupted_while_its_pod_is_made_deletes_it(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_kubectl.put_list(queue, "pods", [])
    fake_kubectl.put_list(queue, "deployments", [])
    (queue / "main.json").write_text(json.dumps({"spec": CLUSTER}))
    create = Kubectl.create

    def interrupted(kubectl: Kubectl, manifest: dict[str, Any], namespace: str) -> None:
        create(kubectl, manifest, namespace)
        raise KeyboardInterrupt

    monkeypatch.setattr(Kubectl, "create", interrupted)

    assert run("size", "outgoing", "--image", "registry/postroad:2").exit_code == 1

    made = json.loads((queue / "created.json").read_text())["metadata"]["name"]
    assert calls(queue)[-1].split()[:2] == ["delete", f"pod/{made}"]


def test_a_queue_without_deployments_gets_a_pod_like_a_workers(queue: Path) -> None:
    fake_kubectl.put_list(queue, "pods", [])
    fake_kubectl.put_list(queue, "deployments", [])
    (queue / "main.json").write_text(json.dumps({"spec": CLUSTER}))

    assert run("size", "outgoing", "--image", "registry/postroad:2").exit_code == 0

    spec = json.loads((queue / "created.json").read_text())["spec"]
    (only,) = spec["containers"]
    names = {each["name"] for each in only["env"]}
    assert only["image"] == "registry/postroad:2"
    assert {
        "POSTROAD_RABBITMQ_LOGIN_FOLDER",
        "POSTROAD_S3_LOGIN_FOLDER",
        "POSTROAD_CASSANDRA_CA_FILE",
    } <= names
    assert only["securityContext"]["readOnlyRootFilesystem"]
    assert spec["serviceAccountName"] == "outgoing-queue"


@pytest.mark.parametrize("words", [("size", "outgoing"), MIGRATION])
def test_a_queue_without_deployments_has_no_image_and_the_error_asks_for_one(
    queue: Path, words: tuple[str, ...]
) -> None:
    fake_kubectl.put_list(queue, "pods", [])
    fake_kubectl.put_list(queue, "deployments", [])
    (queue / "main.json").write_text(json.dumps({"spec": CLUSTER}))

    done = run(*words)

    assert done.exit_code == 1
    assert "--image" in done.output
    assert not (queue / "created.json").exists()


def test_the_image_of_a_resource_is_that_of_a_pod_without_deployments(queue: Path) -> None:
    found = json.loads((queue / "outgoing.json").read_text())
    found["spec"]["image"] = "registry/postroad:own"
    (queue / "outgoing.json").write_text(json.dumps(found))
    fake_kubectl.put_list(queue, "pods", [])
    (queue / "main.json").write_text(json.dumps({"spec": CLUSTER}))

    assert run("size", "outgoing").exit_code == 0

    (only,) = json.loads((queue / "created.json").read_text())["spec"]["containers"]
    assert only["image"] == "registry/postroad:own"


def test_an_intake_with_an_outbox_gives_its_image_and_no_volume_of_its_own(queue: Path) -> None:
    mounts = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "outbox", "mountPath": "/var/lib/postroad/outbox"},
    ]
    container = {"name": "intake", "image": "registry/postroad:1", "volumeMounts": mounts}
    template = {"spec": {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}}
    fake_kubectl.put_list(queue, "pods", [])
    fake_kubectl.put_list(queue, "deployments", [])
    fake_kubectl.put_list(queue, "statefulsets", [{"spec": {"template": template}}])

    assert run("size", "outgoing").exit_code == 0

    (only,) = json.loads((queue / "created.json").read_text())["spec"]["containers"]
    assert only["image"] == "registry/postroad:1"
    assert only["volumeMounts"] == mounts[:1]


def test_a_migration_is_a_job_like_a_pod_of_the_queue(queue: Path) -> None:
    fake_kubectl.put_list(queue, "deployments", [])
    (queue / "main.json").write_text(json.dumps({"spec": CLUSTER}))

    done = run(*MIGRATION, "--hidden", "-n", "mail", "--image", "registry/postroad:2")

    assert done.exit_code == 0, done.output
    made = json.loads((queue / "created.json").read_text())
    assert f"kubectl logs --namespace mail -f job/{made['metadata']['name']}" in done.output
    assert (made["kind"], made["metadata"]["namespace"]) == ("Job", "mail")
    (rule,) = [each for each in made["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in each]
    spec = made["spec"]["template"]["spec"]
    (only,) = spec["containers"]
    assert rule["onExitCodes"]["containerName"] == only["name"]
    assert only["command"] == [
        *("postroad", "migrate", "james", "spool", "--conf", "/etc/james", "--hidden"),
        *("--queue", "distributed://mail.outgoing"),
    ]
    (volume,) = [
        each for each in spec["volumes"] if each.get("secret", {}).get("secretName") == "his"
    ]
    (mount,) = [each for each in only["volumeMounts"] if each["name"] == volume["name"]]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/james", True)
    assert spec["restartPolicy"] == "Never"
    assert "activeDeadlineSeconds" not in spec
    assert "POSTROAD_S3_LOGIN_FOLDER" in {each["name"] for each in only["env"]}


def test_a_migration_to_a_queue_that_is_not_there_makes_nothing(queue: Path) -> None:
    done = run("migrate", "james", "absent", "spool", "--secret", "his")

    assert done.exit_code != 0
    assert not (queue / "created.json").exists()


def test_a_queue_that_is_not_there_and_a_cluster_that_is_away(queue: Path) -> None:
    assert run("size", "incoming").exit_code == 1
    (queue / "away").touch()
    result = run("size", "outgoing")
    assert result.exit_code == 75
    assert "connection refused" in result.output
