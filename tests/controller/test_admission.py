"""What the API server itself refuses, defaults and explains, with the CRDs and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from contract.admission_contract import AdmissionContract
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import API_VERSION, MAIL_QUEUE
from postroad.controller.reads import OWN
from postroad.errors import KubernetesError, KubernetesRefused
from support.resources import mail_queue

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
async def namespace(api: ApiServer, lasting_namespace: str) -> AsyncIterator[str]:
    """The module's namespace, emptied after each test: to remove one, the API server looks for
    objects of every kind."""
    yield lasting_namespace
    for kind in OWN:
        await api.call("DELETE", f"{kind.prefix}/namespaces/{lasting_namespace}/{kind.plural}")


class TestAdmission(AdmissionContract):
    """Over a real API server."""


async def test_kubectl_explain_has_a_text_for_the_view(api: ApiServer) -> None:
    """`kubectl explain` reads what the API server publishes here."""
    published = await api.call("GET", f"/openapi/v3/apis/{API_VERSION}")
    assert published
    schema = published["components"]["schemas"]["dev.postroad.v1beta1.MailQueue"]

    view_schema = schema["properties"]["spec"]["properties"]["view"]

    assert "must divide the accepted one" in view_schema["properties"]["sliceWindow"]["description"]
    assert "only grow" in view_schema["properties"]["bucketCount"]["description"]


@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"contaners": []}},
        {"spec": {"nodeSelecter": {"disk": "fast"}}},
        {"spec": {"replicas": 3}},
        {"spec": {"containers": [{"name": "worker", "resource": {}}]}},
        {"spec": {"containers": [{"name": "worker", "resources": {"limit": {}}}]}},
    ],
    ids=str,
)
async def test_a_template_with_a_field_that_no_pod_has_is_not_applied(
    api: ApiServer, namespace: str, template: dict[str, Any]
) -> None:
    workers = {"handler": {"relay": {"host": "sink"}}, "template": template}

    with pytest.raises(KubernetesError, match="not declared in schema"):
        await api.apply(MAIL_QUEUE, mail_queue(namespace, workers=workers))


async def test_workers_can_be_scaled_by_kubectl_and_autoscalers(
    api: ApiServer, namespace: str
) -> None:
    workers = {"handler": {"relay": {"host": "sink"}}}
    await api.create(MAIL_QUEUE, mail_queue(namespace, workers=workers))
    path = f"{MAIL_QUEUE.prefix}/namespaces/{namespace}/mailqueues/outgoing/scale"

    scale = await api.call("GET", path)
    assert scale
    assert scale["spec"]["replicas"] == 2
    await api.call("PUT", path, body=scale | {"spec": {"replicas": 5}})

    queue = await api.get(MAIL_QUEUE, namespace, "outgoing")
    assert queue
    assert queue["spec"]["workers"]["replicas"] == 5


@pytest.mark.parametrize(
    ("retry", "said"),
    [({"maxAge": "5d"}, "120h, not 5d"), ({"lanes": ["1m", "1d"]}, "24h, not 1d")],
    ids=str,
)
async def test_days_are_refused_with_what_to_write_and_nothing_else(
    api: ApiServer, namespace: str, retry: dict[str, Any], said: str
) -> None:
    with pytest.raises(KubernetesRefused, match=said) as refusal:
        await api.create(MAIL_QUEUE, mail_queue(namespace, retry=retry))

    assert "conversion" not in str(refusal.value)
    assert "longer than" not in str(refusal.value)
    assert "must differ" not in str(refusal.value)
