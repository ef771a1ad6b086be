"""Rewrites the hosts of a QueueCluster to names that resolve in every namespace.

A host without a dot is a Service in the QueueCluster's namespace. The operator and the queues' pods
run in other namespaces, so they get `<host>.<namespace>.svc`.
"""

from __future__ import annotations

import re

from postroad.controller.cluster_spec import QueueClusterSpec

_URL_HOST = re.compile(r"(?P<before>^[a-z0-9+.-]+://(?:[^@/]*@)?)(?P<host>[^:/?\[\]]+)")


def resolve_hosts(spec: QueueClusterSpec, namespace: str) -> QueueClusterSpec:
    """Return the spec of a QueueCluster of `namespace` with hosts that resolve everywhere."""
    rabbitmq, cassandra, s3 = spec.rabbitmq, spec.cassandra, spec.s3
    management, endpoint = rabbitmq.management_url, s3.endpoint
    contact_points = [full(each, namespace) for each in cassandra.contact_points]
    return spec.model_copy(
        update={
            "rabbitmq": rabbitmq.model_copy(
                update={
                    "uri": in_url(rabbitmq.uri, namespace),
                    "management_url": management and in_url(management, namespace),
                }
            ),
            "cassandra": cassandra.model_copy(update={"contact_points": contact_points}),
            "s3": s3.model_copy(update={"endpoint": endpoint and in_url(endpoint, namespace)}),
        }
    )


def full(host: str, namespace: str) -> str:
    """Return a host name that resolves in every namespace.

    >>> full("cassandra", "mail"), full("cassandra.example.org", "mail"), full("::1", "mail")
    ('cassandra.mail.svc', 'cassandra.example.org', '::1')
    """
    is_service = "." not in host and ":" not in host and host != "localhost"
    return f"{host}.{namespace}.svc" if is_service else host


def in_url(url: str, namespace: str) -> str:
    """Return a URL whose host resolves in every namespace.

    >>> in_url("amqp://rabbitmq:5672/%2F", "mail")
    'amqp://rabbitmq.mail.svc:5672/%2F'
    """
    return _URL_HOST.sub(lambda found: found["before"] + full(found["host"], namespace), url)
