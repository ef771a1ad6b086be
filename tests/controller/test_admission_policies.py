"""The sample of admission policies, in a real API server: what they refuse and what they let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import CONFIG_MAP, FINALIZER, MAIL_QUEUE, QUEUE_CLUSTER
from postroad.errors import KubernetesRefused
from postroad.ports.kubernetes import Kind, Object
from support import spec_cases
from support.kubectl import manifests
from support.resources import intake, mail_queue, queue_cluster, relay, workers

pytestmark = pytest.mark.needs("kubernetes")

ADMISSION = "admissionregistration.k8s.io/v1"
POLICY = Kind(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
BINDING = Kind(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
KINDS = {each.name: each for each in (POLICY, BINDING, CONFIG_MAP)}
SAMPLE = Path(__file__).parents[2] / "manifests" / "admission.yaml"
LISTED_IMAGE = "registry.example.org/postroad-with-handlers:1"
BEFORE = "before-the-policies"
NO_CONFIG_MAP = "no params found"
CATALOG = "https://catalog.example/iceberg"
HOOK = {"secretRef": {"name": "x", "key": "secrets"}}
DATABASE = "jdbc:postgresql://a,b/lakes"
LISTED = {"nextHops": "sink,mx", "catalogs": f"{CATALOG} {DATABASE}", "issuers": "id.example"}


BOUNCES = intake(
    listeners=[spec_cases.MX], domains=spec_cases.DOMAINS, bounces={"verpSecret": {"file": "/x"}}
)


@pytest.fixture
def namespace(lasting_namespace: str) -> str:
    """The module's namespace: policies come into force, and out of it, within seconds."""
    return lasting_namespace


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policies(lasting_api: ApiServer, lasting_namespace: str) -> AsyncIterator[None]:
    """The policies, for the module's namespace, once they are in force."""
    api, namespace = lasting_api, lasting_namespace
    template = {"spec": {"serviceAccountName": "another"}}
    await api.create(MAIL_QUEUE, with_template(namespace, template, BEFORE))
    # Kubernetes does not read ConfigMaps again once no policy was left that has one: these stay.
    for kind, each in sample_for("none"):
        if kind is not CONFIG_MAP:
            await api.apply(kind, each)
    made = [(kind, await api.create(kind, each)) for kind, each in sample_for(namespace)]
    await until_in_force(api, namespace)
    yield
    for kind, each in reversed(made):  # without the ConfigMap every write is refused
        await api.delete(kind, each)
    await until_out_of_force(api, with_template(namespace, template, "probe"))


def sample_for(namespace: str) -> Iterator[tuple[Kind, Object]]:
    """Yield the sample's objects as a namespace's own."""
    for each in manifests(SAMPLE):
        kind, metadata = KINDS[each["kind"]], each["metadata"]
        if kind is CONFIG_MAP:
            metadata["namespace"] = namespace
            each["data"] |= LISTED | {"consoles": namespace}
        else:
            metadata["name"] += f"-{namespace}"
        if kind is BINDING:
            only = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
            each["spec"]["policyName"] += f"-{namespace}"
            each["spec"]["matchResources"] = {"namespaceSelector": only}
            each["spec"]["paramRef"]["namespace"] = namespace
        yield kind, each


async def until_out_of_force(api: ApiServer, wanted: Object) -> None:
    for _ in range(300):
        try:
            await api.delete(MAIL_QUEUE, await api.create(MAIL_QUEUE, wanted))
        except KubernetesRefused:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the policies that were deleted are still in force")


async def until_in_force(api: ApiServer, namespace: str) -> None:
    """The API server reads its policies every second or so, and their ConfigMap apart from them."""
    for kind, wanted in (
        (MAIL_QUEUE, with_template(namespace, {"spec": {"volumes": []}}, "probe")),
        (QUEUE_CLUSTER, queue_cluster(namespace, "probe", s3={"url": "http://elsewhere"})),
    ):
        for _ in range(300):
            try:
                await api.delete(kind, await api.create(kind, wanted))
            except KubernetesRefused as error:
                if NO_CONFIG_MAP not in str(error):
                    break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"no policy about {kind.name} came into force")


async def create_consoles(api: ApiServer, namespace: str) -> None:
    """Create QueueClusters with consoles until one is refused."""
    for number in range(300):
        wanted = queue_cluster(namespace, f"unlisted-{number}", console={})
        await api.create(QUEUE_CLUSTER, wanted)
        await asyncio.sleep(0.1)


def hop(**more: Any) -> dict[str, Any]:
    """Return a rule of the routing, whose only hop is an allowed one."""
    return {"name": "r", "hops": [{"host": "sink", **more}]}


def signing(**key: Any) -> dict[str, Any]:
    """Return a domain that signs its mail, with one key."""
    return {"domain": "a.example", "keys": [{"selector": "s", **key}]}


def asks(**hop: Any) -> dict[str, Any]:
    """Return an intake that asks a server for recipients."""
    return intake(domains=[{"name": "a.example", "recipients": {"callAhead": hop}}])


def filtered(**fields: Any) -> dict[str, Any]:
    return intake(filters=[{"name": "f", **fields}])


def lake(**catalog: Any) -> dict[str, Any]:
    """Return a pipeline whose lake has a catalog."""
    return {"pipeline": {"catalog": {"type": "REST", "uri": CATALOG} | catalog}}


def events(**receiver: Any) -> dict[str, Any]:
    return {"delivery": {"events": [{"name": "e", **receiver}]}}


def with_template(namespace: str, template: dict[str, Any], name: str = "outgoing") -> Object:
    return mail_queue(namespace, name, workers=workers() | {"template": template})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"spec": {"serviceAccountName": "another"}}, "may place pods"),
        ({"spec": {"volumes": [{"name": "x", "secret": {"secretName": "x"}}]}}, "may place pods"),
        ({"spec": {"hostNetwork": True}}, "may place pods"),
        ({"metadata": {"annotations": {"identity": "another"}}}, "may place pods"),
        ({"spec": {"containers": [{"name": "another", "image": "x"}]}}, "may set the resources"),
        ({"spec": {"containers": [{"name": "worker", "image": "x"}]}}, "may set the resources"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("policies")
async def test_a_template_can_take_no_rights_of_others(
    api: ApiServer, namespace: str, template: dict[str, Any], message: str
) -> None:
    with pytest.raises(KubernetesRefused, match=message):
        await api.create(MAIL_QUEUE, with_template(namespace, template))


@pytest.mark.usefixtures("policies")
async def test_a_template_may_place_pods_and_give_them_resources(
    api: ApiServer, namespace: str
) -> None:
    resources = {"requests": {"cpu": "1"}}
    containers = [{"name": "worker", "resources": resources}]
    template = {"spec": {"nodeSelector": {"disk": "fast"}, "containers": containers}}

    assert await api.create(MAIL_QUEUE, with_template(namespace, template, "placed"))
    assert await api.create(MAIL_QUEUE, mail_queue(namespace, "without-workers"))
    job = {"spec": {"containers": [{"name": "pipeline", "resources": resources}]}}
    pipeline = {"template": job}
    assert await api.create(MAIL_QUEUE, mail_queue(namespace, "archived", pipeline=pipeline))


@pytest.mark.usefixtures("policies")
async def test_pods_may_be_placed_by_users_without_other_rights(
    api: ApiServer, namespace: str
) -> None:
    pod = {"resources": {"requests": {"cpu": "1"}}, "tolerations": [{"key": "a"}]}
    placed = workers() | {"pod": pod}
    queue = mail_queue(namespace, "placed-by-pod", workers=placed, intake=intake(pod=pod))

    assert await api.create(MAIL_QUEUE, queue)


@pytest.mark.usefixtures("policies")
async def test_hosts_that_are_not_listed_are_refused(api: ApiServer, namespace: str) -> None:
    elsewhere = workers()
    elsewhere["handler"]["relay"]["host"] = "elsewhere"
    with pytest.raises(KubernetesRefused, match="none of the allowed next hops"):
        await api.create(MAIL_QUEUE, mail_queue(namespace, workers=elsewhere))
    listed = mail_queue(namespace, "by-mx", workers={"handler": {"mx": {}}})
    assert await api.create(MAIL_QUEUE, listed)
    function = {"handler": {"function": {"name": "app:deliver"}}}
    with pytest.raises(KubernetesRefused, match="none of the allowed next hops"):
        await api.create(MAIL_QUEUE, mail_queue(namespace, workers=function))
    webhook = {"url": "http://elsewhere:8080/sink", "secretRef": {"name": "webhook"}}
    with pytest.raises(KubernetesRefused, match="none of the allowed next hops"):
        await api.create(
            MAIL_QUEUE, mail_queue(namespace, workers={"handler": {"webhook": webhook}})
        )
    webhook["url"] = "http://sink:8080/"
    assert await api.create(
        MAIL_QUEUE, mail_queue(namespace, workers={"handler": {"webhook": webhook}})
    )
    rule = {"name": "r", "hops": [{"host": "sink"}]}
    delivery = {"routing": {"rules": [rule, {"name": "s", "mx": {}, "domains": ["a.example"]}]}}
    assert await api.create(MAIL_QUEUE, mail_queue(namespace, "routed", delivery=delivery))
    rule["hops"] = [{"host": "sink"}, {"host": "elsewhere", "tier": 2}]
    with pytest.raises(KubernetesRefused, match="a smart host of spec"):
        await api.create(MAIL_QUEUE, mail_queue(namespace, "other", delivery=delivery))
    management = queue_cluster(namespace)
    management["spec"]["rabbitmq"]["managementURL"] = "http://elsewhere:15672"
    with pytest.raises(KubernetesRefused, match="none of the allowed hosts"):
        await api.create(QUEUE_CLUSTER, management)

    assert await api.create(QUEUE_CLUSTER, queue_cluster(namespace))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"workers": workers() | {"pod": {"env": [{"name": "A"}]}}}, "pod may have"),
        ({"workers": workers() | {"pod": {"labels": {"identity": "x"}}}}, "pod may have"),
        ({"intake": intake(pod={"securityContext": {"runAsUser": 1}})}, "pod may have"),
        ({"pipeline": {"pod": {"annotations": {"identity": "x"}}}}, "pod may have"),
        ({"intake": intake(template={"spec": {"hostNetwork": True}})}, "may place pods"),
        ({"serviceAccount": {"name": "another"}}, "the administrator's"),
        ({"serviceAccount": {"annotations": {"role": "x"}}}, "the administrator's"),
        ({"intake": intake(service={"type": "NodePort"})}, "from outside"),
        ({"intake": intake(service={"annotations": {"lb": "x"}})}, "from outside"),
        (
            {"pipeline": {"template": {"spec": {"serviceAccountName": "another"}}}},
            "may place pods",
        ),
        (
            {
                "pipeline": {
                    "template": {"spec": {"containers": [{"name": "pipeline", "image": "x"}]}}
                }
            },
            "may set the resources",
        ),
        (
            {"pipeline": {"image": LISTED_IMAGE, "executors": {"instances": 1}}},
            "spec.pipeline.image is the operator's",
        ),
        ({"image": "another"}, "an image of this MailQueue"),
        ({"pipeline": {"image": "another"}}, "an image of this MailQueue"),
        ({"delivery": {"routing": {"resolver": {"servers": ["192.0.2.1"]}}}}, "a name server of"),
        (
            {
                "delivery": {
                    "routing": {"rules": [hop(tls={"mode": "Required"}, login={"folder": "/x"})]}
                }
            },
            "no files of the pod",
        ),
        (
            {"delivery": {"signing": [signing(file="/etc/postroad/key")]}},
            "no files of the pod",
        ),
        (
            {"intake": intake(listeners=[relay(tls={"certificates": [{"cert": "/etc/x"}]})])},
            "no files or sockets",
        ),
        ({"intake": intake(users={"file": "/etc/x"})}, "no files or sockets"),
        ({"intake": intake(users={"dovecot": {"socket": "/x"}})}, "no files or sockets"),
        (
            {"intake": intake(domains=[{"name": "a.example", "recipients": {"file": "/etc/x"}}])},
            "no files or sockets",
        ),
        (
            {"workers": {"handler": {"relay": {"host": "mx"}}}},
            "names none of the allowed next hops",
        ),
        (
            {"delivery": {"routing": {"rules": [hop() | {"hops": [{"host": "mx"}]}]}}},
            "a smart host of spec",
        ),
        (events(webhook="https://mx/", secret=HOOK), "a webhook of spec.delivery.events"),
        ({"intake": filtered(milter="inet:mx:1")}, "a filter or a callAhead of"),
        ({"intake": asks(host="mx")}, "callAhead of spec.intake names none"),
        ({"intake": asks(socket="/run/lmtp")}, "no files or sockets"),
        ({"intake": asks(host="elsewhere")}, "callAhead of spec.intake names none"),
        ({"intake": filtered(milter="unix:/run/milter")}, "no files or sockets"),
        ({"intake": filtered(milter="inet:elsewhere:1")}, "a filter or a callAhead of"),
        ({"intake": filtered(function="a:b"), "image": LISTED_IMAGE}, "a filter or a callAhead of"),
        ({"intake": intake(filters=[spec_cases.HOOK_FILTER])}, "a filter or a callAhead of"),
        ({"workers": {"handler": {"relay": {"socket": "/run/lmtp"}}}}, "no files of the pod"),
        ({"delivery": {"routing": {"sts": {"folder": "/etc/postroad"}}}}, "no files of the pod"),
        (events(file="/tmp/events"), "no files of the pod"),
        (
            events(webhook="https://sink/", secret={"file": "/etc/postroad/rabbitmq/password"}),
            "no files of the pod",
        ),
        (events(webhook="https://elsewhere/", secret=HOOK), "a webhook of spec.delivery.events"),
        (
            {"intake": BOUNCES},
            "no files or sockets",
        ),
        (
            {"intake": intake(users={"oidc": spec_cases.OIDC | {"issuer": "https://elsewhere"}})},
            "spec.intake.users.oidc names none",
        ),
        (lake(uri="https://elsewhere/"), "spec.pipeline.catalog is none"),
        (lake(uri=f"{CATALOG}/of/another"), "spec.pipeline.catalog is none"),
        (lake(type="JDBC", uri=f"{DATABASE}?socketFactory=a.B"), "spec.pipeline.catalog is none"),
        (lake(login={"folder": "/etc/postroad/rabbitmq"}), "spec.pipeline.catalog may have"),
        (lake(properties={"io-impl": "a.B"}), "spec.pipeline.catalog may have"),
        (lake(properties={"s3.endpoint": "http://elsewhere"}), "spec.pipeline.catalog may have"),
        (
            lake(properties={"oauth2-server-uri": "https://elsewhere/"}),
            "spec.pipeline.catalog may have",
        ),
        (
            lake(type="JDBC", uri=DATABASE, warehouse="hdfs://elsewhere/lake"),
            "spec.pipeline.catalog may have",
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("policies")
async def test_a_spec_takes_no_rights_of_others_and_leads_nothing_elsewhere(
    api: ApiServer, namespace: str, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(KubernetesRefused, match=message):
        await api.create(MAIL_QUEUE, mail_queue(namespace, **spec))


@pytest.mark.usefixtures("policies")
async def test_what_is_listed_or_in_a_secret_is_let_in(api: ApiServer, namespace: str) -> None:
    login, key = {"secretRef": {"name": "x"}}, {"name": "x", "key": "private"}
    delivery = {
        "routing": {"rules": [hop(tls={"mode": "Required"}, login=login)]},
        "signing": [signing(secretRef=key)],
    }

    assert await api.create(
        MAIL_QUEUE,
        mail_queue(
            namespace,
            "listed",
            image=LISTED_IMAGE,
            delivery=delivery,
            intake=asks(host="sink")
            | filtered(milter="inet:sink:11332")
            | intake(listeners=[spec_cases.SUBMISSION], users=spec_cases.USERS),
        ),
    )


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("rest", lake(login={"secretRef": {"name": "x"}}, properties={"scope": "lake"})),
        ("jdbc", lake(type="JDBC", uri=DATABASE, warehouse="s3a://lakes/one")),
        ("hadoop", {"pipeline": {"catalog": {"type": "Hadoop"}}}),
        ("events", events(webhook="https://sink:8443/", secret=HOOK)),
        (
            "issuer",
            {"intake": intake(listeners=[spec_cases.SUBMISSION], users={"oidc": spec_cases.OIDC})},
        ),
    ],
)
@pytest.mark.usefixtures("policies")
async def test_catalogs_events_and_issuers_that_are_listed_are_let_in(
    api: ApiServer, namespace: str, name: str, spec: dict[str, Any]
) -> None:
    assert await api.create(MAIL_QUEUE, mail_queue(namespace, name, **spec))


@pytest.mark.parametrize(
    ("console", "message"),
    [
        ({"oidc": {"issuer": "https://elsewhere", "clientId": "x"}}, "none of the allowed issuers"),
        ({"pod": {"env": [{"name": "A", "value": "x"}]}}, "spec.console may have of pod"),
        ({"pod": {"annotations": {"identity": "x"}}}, "spec.console may have of pod"),
        ({"pod": {"securityContext": {"runAsUser": 1}}}, "spec.console may have of pod"),
        ({"serviceAccount": {"name": "another"}}, "and no serviceAccount"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("policies")
async def test_a_console_takes_no_rights_of_others(
    api: ApiServer, namespace: str, console: dict[str, Any], message: str
) -> None:
    with pytest.raises(KubernetesRefused, match=message):
        await api.create(QUEUE_CLUSTER, queue_cluster(namespace, "shown", console=console))


@pytest.mark.usefixtures("policies")
async def test_a_console_is_let_in_where_its_namespace_is_listed(
    api: ApiServer, namespace: str
) -> None:
    console = {
        "pod": {"nodeSelector": {"pool": "infra"}},
        "oidc": {"issuer": "https://id.example/a", "clientId": "x", "secretRef": HOOK["secretRef"]},
    }
    assert await api.create(QUEUE_CLUSTER, queue_cluster(namespace, "shown", console=console))
    listed = {"data": {"consoles": "another,other"}}
    await api.patch(CONFIG_MAP, namespace, "postroad-hosts", listed)
    try:
        with pytest.raises(KubernetesRefused, match="not allowed in this namespace"):
            await create_consoles(api, namespace)
    finally:
        await api.patch(CONFIG_MAP, namespace, "postroad-hosts", {"data": {"consoles": namespace}})


@pytest.mark.usefixtures("policies")
async def test_what_was_there_before_can_lose_its_finalizer(api: ApiServer, namespace: str) -> None:
    for finalizers in ([FINALIZER], None):
        change = {"metadata": {"finalizers": finalizers}}
        assert await api.patch(MAIL_QUEUE, namespace, BEFORE, change)
