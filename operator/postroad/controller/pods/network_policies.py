"""Builds the NetworkPolicies of a MailQueue's pods, from what they connect to: pure.

A destination is a port at any address, because a policy knows no host names. Policies add up, so
that a proxy or a further container gets what it needs by one of the user's own."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from postroad.controller.kubernetes import api
from postroad.controller.spec.cluster import QueueClusterSpec
from postroad.controller.spec.intake import HEALTH, Intake
from postroad.controller.spec.mailqueue import Handler
from postroad.controller.spec.queue_resource import PodContext, Queue
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.lake_catalog import LakeCatalog
from postroad.routing.answers import DNS_PORT

PolicyRules = list[dict[str, Any]]

ANYWHERE: PolicyRules = [{}]
SMTP_PORT, HTTPS_PORT = 25, 443
"""Of the servers of MX records, and of policies of MTA-STS."""

API_SERVER_PORTS = (443, 6443)
"""Usual ones, of API servers and the Service before them."""

CREDENTIAL_AGENTS = ("169.254.0.0/16", "fd00:ec2::/32")
"""Link-local addresses at which a node or an agent on it gives pods the credentials of a cloud, by
HTTP: those of AWS."""

_USUAL = {"amqp": 5672, "amqps": 5671, "http": 80, "https": HTTPS_PORT, "postgresql": 5432}


def network_policies(queue: Queue, context: PodContext) -> Mapping[str, dict[str, Any]]:
    """Return the specs of the policies, by what they are about: all pods of the queue; the intake,
    the workers and the jobs beside. None, where they are not wanted."""
    spec, every = queue.spec, {"app.kubernetes.io/name": "postroad", api.INSTANCE: queue.name.name}
    if not spec.network_policy.enabled:
        return {}
    of_the_queue = {"podSelector": {"matchLabels": every}}
    policies: dict[str, tuple[Mapping[str, str], PolicyRules, PolicyRules]] = {
        "queue": (
            {},
            [_to([HEALTH]), {"from": [of_the_queue]}],
            [*_servers(context.cluster), {"to": [of_the_queue]}],
        )
    }
    if spec.intake is not None:
        ingress, asked = [_to(spec.intake.ports)], _asked_by(spec.intake)
        policies["intake"] = {api.COMPONENT: "intake"}, ingress, asked
    if spec.workers is not None:
        egress = _egress_of(spec.workers.handler, queue)
        policies["worker"] = {api.COMPONENT: "worker"}, [], egress
    if spec.pipeline is not None and spec.pipeline.executors.instances:
        # The address of the API server, which a driver asks for pods, is the cluster's own matter.
        policies["pipeline"] = {api.COMPONENT: "pipeline"}, [], ANYWHERE
    elif spec.pipeline is not None and (catalog := spec.pipeline.catalog) is not None:
        egress = _asked_of(catalog)
        policies["pipeline"] = {api.COMPONENT: "pipeline"}, [], egress
    return {
        of: {
            "podSelector": {"matchLabels": {**every, **labels}},
            "policyTypes": [
                name for name, rules in (("Ingress", ingress), ("Egress", egress)) if rules
            ],
            **({"ingress": ingress} if ingress else {}),
            **({"egress": egress} if egress else {}),
        }
        for of, (labels, ingress, egress) in policies.items()
        if ingress or egress
    }


def console_policy(cluster: QueueClusterSpec, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of the policy of a console's pods. The address of the API server is the
    cluster's own matter."""
    oidc = None if cluster.console is None else cluster.console.oidc
    https = {*API_SERVER_PORTS, *(() if oidc is None else (_port_of(oidc.issuer),))}
    return {
        "podSelector": {"matchLabels": dict(tags)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [_to(["http", HEALTH])],
        "egress": [*_servers(cluster), _to(sorted(https))],
    }


def _to(ports: Iterable[int | str], protocols: Iterable[str] = ("TCP",)) -> dict[str, Any]:
    return {"ports": [{"port": each, "protocol": of} for each in ports for of in protocols]}


def _names(ports: Iterable[int]) -> dict[str, Any]:
    """Return the rule for name servers at these ports."""
    return _to(ports, ("UDP", "TCP"))


def _servers(cluster: QueueClusterSpec) -> PolicyRules:
    """Return the rules for DNS and the servers; for pods without keys of S3 also for STS and for
    agents, which give them some."""
    urls = (cluster.rabbitmq.url, cluster.rabbitmq.management_url, cluster.s3.url or "https://s3")
    ports = {cluster.cassandra.port, *(_port_of(each) for each in urls if each)}
    if cluster.s3.secret_ref is not None:
        return [_names([DNS_PORT]), _to(sorted(ports))]
    agents = [{"ipBlock": {"cidr": each}} for each in CREDENTIAL_AGENTS]
    asked = {"to": agents, **_to([_USUAL["http"]])}
    return [_names([DNS_PORT]), _to(sorted({*ports, HTTPS_PORT})), asked]


def _port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or _USUAL[parts.scheme]


def _asked_by(intake: Intake) -> PolicyRules:
    """Return what an intake asks: the issuer of its users, its filters, servers with mailboxes."""
    if any(each.function is not None for each in intake.filters):  # it connects to what it likes
        return ANYWHERE
    ports = {each.port for each in intake.filters if each.port is not None}
    users = intake.users
    if users is not None and users.oidc is not None:
        ports |= {_port_of(users.oidc.issuer), HTTPS_PORT}
    tables = (each.recipients for each in intake.domains)
    hops = [each.call_ahead for each in tables if each is not None and each.call_ahead is not None]
    ports |= {hop.port_of_host for hop in hops if hop.host is not None}
    return [_to(sorted(ports))] if ports else []


def _asked_of(catalog: LakeCatalog) -> PolicyRules:
    """Return the rule for the server of a catalog, and for the issuer of its tokens."""
    urls = [(catalog.uri or "").removeprefix("jdbc:")]
    urls += [each for each in catalog.properties.values() if each.startswith(("http:", "https:"))]
    try:
        return [_to(sorted({_port_of(each) for each in urls}))] if catalog.uri else []
    except (KeyError, ValueError):  # a database whose usual port is not known
        return ANYWHERE


def _egress_of(handler: Handler, queue: Queue) -> PolicyRules:
    """Return where workers deliver to."""
    if handler.function is not None:  # it connects to what it likes
        return ANYWHERE
    events = () if queue.spec.delivery is None else queue.spec.delivery.events
    ports = {_port_of(each.webhook) for each in events if each.webhook is not None}
    if handler.webhook is not None:
        return [_to(sorted({_port_of(handler.webhook.url), *ports}))]
    hops: list[Hop] = [handler.relay] if handler.relay is not None else []
    ports |= {SMTP_PORT, HTTPS_PORT} if handler.mx is not None else set()
    servers = set[int]()
    if queue.spec.delivery is not None and (routing := queue.spec.delivery.routing) is not None:
        by_mx = [routing.mx, *(rule.mx for rule in routing.rules if rule.mx is not None)]
        ports |= {each.tls.mode.default_port for each in by_mx}
        hops += [hop for rule in routing.rules for hop in rule.hops or ()]
        servers = {port for _, port in routing.resolver.addresses()} - {DNS_PORT}
    ports |= {hop.port_of_host for hop in hops if hop.host is not None}
    rules = [_to(sorted(ports))] if ports else []
    return [*rules, *([_names(sorted(servers))] if servers else [])]
