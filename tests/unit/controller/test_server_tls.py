"""TLS to the servers of a QueueCluster: as its spec names it, for the operator and for pods, and
whatever Secrets hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from postroad.adapters.clocks import MachineClock
from postroad.controller.credentials import read_credentials, server_settings
from postroad.controller.kubernetes.api import CONFIG_MAP, MAIL_QUEUE, QUEUE_CLUSTER, SECRET
from postroad.controller.pods.manifests import wanted_children
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.errors import CertificateUnusable
from postroad.settings import from_environment
from postroad.tls import Encryption
from support import resources
from support.certificates import Certificates
from support.manual_loop import move, run
from support.memory.kubernetes.client import MemoryKubernetes
from support.memory.kubernetes.world import KubernetesWorld
from support.running_controller import NAMESPACE, RunningController, running_controller

CA, CLIENT = {"caRef": {"name": "ours"}}, {"clientCertRef": {"name": "client"}}
TLS = {
    "rabbitmq": {"url": "amqps://rabbitmq", "secretRef": {"name": "rabbitmq"}, "tls": CA | CLIENT},
    "cassandra": {
        "contactPoints": ["cassandra"],
        "keyspace": "postroad",
        "tls": {"mode": "VerifyFull", "serverName": "nodes.example.org"} | CLIENT,
    },
    "s3": {
        "url": "https://s3",
        "secretRef": {"name": "s3"},
        "tls": {"caRef": {"kind": "ConfigMap", "name": "bundle"}},
    },
}
LONGER_THAN_A_FULL_RECONCILE = 400


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def authorities(certificates: Certificates) -> Any:
    return resources.secret(NAMESPACE, "ours", {"ca.crt": certificates.authority.read_text()})


async def with_objects(certificates: Certificates) -> MemoryKubernetes:
    """Return an API server that has what the spec names."""
    api = MemoryKubernetes(KubernetesWorld(MachineClock()))
    pair = {"tls.crt": certificates.chain.read_text(), "tls.key": certificates.key.read_text()}
    client = resources.secret(NAMESPACE, "client", pair)
    for each in (*resources.secrets(NAMESPACE), authorities(certificates), client):
        await api.create(SECRET, each)
    bundle = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "bundle", "namespace": NAMESPACE},
        "data": {"ca.crt": certificates.authority.read_text()},
    }
    await api.create(CONFIG_MAP, bundle)
    return api


def secret(name: str, password: str) -> Any:
    return resources.secret(NAMESPACE, name, {"username": "postroad", "password": password})


def spec(**change: Any) -> QueueClusterSpec:
    return QueueClusterSpec.model_validate(TLS | change)


async def test_the_operator_connects_as_the_spec_names_it(
    certificates: Certificates, tmp_path: Path
) -> None:
    api = await with_objects(certificates)

    made = server_settings(spec(), await read_credentials(api, NAMESPACE, spec()), tmp_path)

    authority = certificates.authority.read_text().strip()
    rabbitmq, cassandra, s3 = made.rabbitmq, made.cassandra, made.s3
    assert rabbitmq.ca_file
    assert s3.ca_file
    assert rabbitmq.ca_file.read_text() == s3.ca_file.read_text() == authority
    assert (cassandra.tls, cassandra.tls_name) == (Encryption.VERIFY_FULL, "nodes.example.org")
    assert cassandra.ca_file is None, "the system's, and not those of another server"
    for shown in (rabbitmq.client_certificate, cassandra.client_certificate):
        assert shown
        assert certificates.key.read_text() in shown.read_text()
    assert made.ca_file is None


def pods(component: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a component's container and its volumes by name."""
    relay = {"host": "next.example.org", "tls": {"mode": "Required", "caRef": {"name": "theirs"}}}
    wanted = resources.mail_queue(
        NAMESPACE,
        workers={"handler": {"relay": relay}},
        intake=resources.intake(),
    )
    wanted["metadata"] |= {"uid": "u1", "generation": 1}
    children = wanted_children(Queue.of(wanted), PodContext(spec(), "postroad:1"))
    (found,) = (
        child["spec"]["template"]["spec"]
        for kind, child in children
        if (kind.name, child["metadata"]["name"]) == ("Deployment", f"outgoing-{component}")
    )
    data = {
        name: text
        for kind, child in children
        if kind.name == "ConfigMap"
        for name, text in child["data"].items()
        if name.startswith("POSTROAD_")
    }
    (container,) = found["containers"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    container["environment"] = data | variables
    return container, {each["name"]: each for each in found["volumes"]}


def test_pods_connect_as_the_spec_names_it() -> None:
    container, volumes = pods("worker")

    settings = from_environment(container["environment"])
    assert settings.rabbitmq.login_folder
    assert settings.s3.login_folder

    mounted = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    read = {
        str(Path(folder, item["path"])): source[kind]["name"]
        for folder, volume in mounted.items()
        for source in volume.get("projected", {}).get("sources", [])
        for kind in source
        for item in source[kind]["items"]
    }
    named = {
        settings.rabbitmq.login_folder / "username": "rabbitmq",
        settings.rabbitmq.login_folder / "password": "rabbitmq",
        settings.s3.login_folder / "accessKey": "s3",
        settings.s3.login_folder / "secretKey": "s3",
        settings.rabbitmq.ca_file: "ours",
        settings.rabbitmq.client_certificate: "client",
        settings.rabbitmq.client_key: "client",
        settings.cassandra.client_certificate: "client",
        settings.cassandra.client_key: "client",
        settings.s3.ca_file: "bundle",
    }
    assert {str(file): name for file, name in named.items()} == read
    assert settings.cassandra.login_folder is None
    assert settings.cassandra.ca_file is None
    assert settings.ca_file is None
    assert settings.cassandra.tls is Encryption.VERIFY_FULL
    assert settings.cassandra.tls_name == "nodes.example.org"


def test_an_intake_has_no_authorities_of_the_next_hop() -> None:
    _, volumes = pods("intake")

    assert {"tmp", "intake", "rabbitmq", "cassandra", "s3"} == set(volumes)


async def with_authorities(operator: RunningController, certificates: Certificates) -> None:
    """Declare a queue whose RabbitMQ has an authority of its own."""
    await operator.create(authorities(certificates))
    await operator.declare(workers=resources.workers())
    rabbitmq = {"url": "amqps://rabbitmq", "tls": {"caRef": {"name": "ours"}}}
    await operator.user.patch(QUEUE_CLUSTER, NAMESPACE, "main", {"spec": {"rabbitmq": rabbitmq}})
    await move(LONGER_THAN_A_FULL_RECONCILE)
    assert operator.condition("Ready")["status"] == "True"


@pytest.mark.parametrize(
    ("content", "reason"),
    [({"ca.crt": None}, "CredentialsMissing"), ({"ca.crt": "UEVN"}, "CertificateUnusable")],
    ids=["gone", "no certificate"],
)
def test_authorities_that_are_lost_are_a_condition_and_no_connection_is_made(
    certificates: Certificates, content: dict[str, Any], reason: str
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await with_authorities(operator, certificates)
            before = operator.at("deployments", NAMESPACE, "outgoing-worker")
            assert before
            connected = len(operator.connected)

            await operator.user.patch(SECRET, NAMESPACE, "ours", {"data": content})
            await move(LONGER_THAN_A_FULL_RECONCILE)

            for kind, name in ((QUEUE_CLUSTER, "main"), (MAIL_QUEUE, "outgoing")):
                found = operator.condition("Ready", kind, name)
                assert found["reason"] == reason
                assert f"{NAMESPACE}/ours" in found["message"]
            assert len(operator.connected) == connected
            after = operator.at("deployments", NAMESPACE, "outgoing-worker")
            assert after
            assert after["spec"] == before["spec"]

    run(scene())


def test_a_new_authority_replaces_pods_and_connections(
    certificates: Certificates, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with running_controller() as operator:
            await with_authorities(operator, certificates)
            before = operator.at("deployments", NAMESPACE, "outgoing-worker")
            connected = len(operator.connected)

            await operator.user.patch(
                SECRET, NAMESPACE, "ours", authorities(Certificates.make(tmp_path))
            )
            await move(LONGER_THAN_A_FULL_RECONCILE)

            after = operator.at("deployments", NAMESPACE, "outgoing-worker")
            assert before
            assert after
            assert after["spec"] != before["spec"]
            assert len(operator.connected) == connected + 1

    run(scene())


async def test_the_text_of_a_key_that_cannot_be_used_is_in_no_message(
    certificates: Certificates,
) -> None:
    api = await with_objects(certificates)
    broken = resources.secret(NAMESPACE, "client", {"tls.crt": "AAAA", "tls.key": "s3cr3t"})
    await api.patch(SECRET, NAMESPACE, "client", broken)

    with pytest.raises(CertificateUnusable) as refused:
        await read_credentials(api, NAMESPACE, spec())

    assert "s3cr3t" not in refused.value.explain()


async def test_credentials_have_no_text_in_their_repr(certificates: Certificates) -> None:
    shown = repr(await read_credentials(await with_objects(certificates), NAMESPACE, spec()))

    assert "PRIVATE KEY" not in shown
    assert "s3cr3t" not in shown


async def test_what_was_read_is_made_again_where_an_object_changed_or_another_is_named(
    certificates: Certificates,
) -> None:
    api = await with_objects(certificates)
    first = await read_credentials(api, NAMESPACE, spec())
    same = await read_credentials(api, NAMESPACE, spec(), before=first)
    assert (same.rabbitmq, same.cassandra, same.s3) == (first.rabbitmq, first.cassandra, first.s3)
    assert same.rabbitmq is first.rabbitmq

    await api.patch(SECRET, NAMESPACE, "rabbitmq", secret("rabbitmq", password="other"))
    changed = await read_credentials(api, NAMESPACE, spec(), before=first)
    assert changed.rabbitmq.values["password"].get_secret_value() == "other"
    assert changed.rabbitmq.version != first.rabbitmq.version
    assert changed.cassandra is first.cassandra

    found = await api.get(SECRET, NAMESPACE, "rabbitmq")
    assert found
    await api.delete(SECRET, found)
    await api.create(SECRET, secret("rabbitmq", password="another"))
    recreated = await read_credentials(api, NAMESPACE, spec(), before=changed)
    assert recreated.rabbitmq.values["password"].get_secret_value() == "another"

    plain = spec(s3={key: each for key, each in TLS["s3"].items() if key != "tls"})
    assert (await read_credentials(api, NAMESPACE, plain, before=recreated)).s3.authorities is None
