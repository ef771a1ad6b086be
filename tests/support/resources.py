"""QueueClusters, MailQueues and Secrets as people would write them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from postroad.controller.kubernetes.api import API_VERSION
from postroad.ports.kubernetes import Object


def mail_queue(namespace: str, name: str = "outgoing", **spec: Any) -> Object:
    """Return a MailQueue of the QueueCluster `main`."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MailQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterRef": {"name": "main"}} | spec,
    }


def task(namespace: str, name: str = "task", **spec: Any) -> Object:
    """Return a MailQueueTask of the MailQueue `outgoing`."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MailQueueTask",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"queueRef": {"name": "outgoing"}} | spec,
    }


def queue_cluster(namespace: str, name: str = "main", **spec: Any) -> Object:
    """Return a QueueCluster whose servers want credentials of three Secrets."""
    return {
        "apiVersion": API_VERSION,
        "kind": "QueueCluster",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "rabbitmq": {"url": "amqp://rabbitmq:5672/%2F", "secretRef": {"name": "rabbitmq"}},
            "cassandra": {
                "contactPoints": ["cassandra"],
                "keyspace": "postroad",
                "secretRef": {"name": "cassandra"},
                "tls": {"mode": "Disabled"},
            },
            "s3": {"url": "http://s3:9000", "secretRef": {"name": "s3"}},
        }
        | spec,
    }


def secret(namespace: str, name: str, data: Mapping[str, str]) -> Object:
    """Return a Secret."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
    }


def secrets(namespace: str) -> list[Object]:
    """Return the three Secrets of `queue_cluster`."""
    login = {"username": "postroad", "password": "s3cr3t-of-the-test"}
    return [
        secret(namespace, "rabbitmq", login),
        secret(namespace, "cassandra", login),
        secret(namespace, "s3", {"accessKey": "key", "secretKey": "s3cr3t-of-the-test"}),
    ]


def view(window: str, buckets: int, pace: int = 1000) -> dict[str, Any]:
    """Return `spec.view`."""
    return {"sliceWindow": window, "bucketCount": buckets, "updateBrowseStartPace": pace}


def intake(*relay_from: str, **intake: Any) -> dict[str, Any]:
    """Return `spec.intake`, without replicas, and for pods of 10.0.0.0/8 by default."""
    return {"replicas": 0, "listeners": [relay(*relay_from)]} | intake


def relay(*networks: str, name: str = "smtp", port: int = 2525, **listener: Any) -> dict[str, Any]:
    """Return a listener of role relay, for clients of 10.0.0.0/8 by default."""
    own = {"name": name, "role": "relay", "port": port, "from": [*networks] or ["10.0.0.0/8"]}
    return own | listener


def workers(replicas: int = 0) -> dict[str, Any]:
    """Return `spec.workers`; no replicas, since no kubelet runs pods in these tests."""
    return {"replicas": replicas, "handler": {"relay": {"host": "sink", "port": 2525}}}
