import pytest

from postroad.controller.spec.cluster import in_url, spec_of


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://rabbitmq:5672/%2F", "amqp://rabbitmq.mail.svc:5672/%2F"),
        ("amqps://rabbitmq", "amqps://rabbitmq.mail.svc"),
        ("amqp://rabbitmq.example.org/", "amqp://rabbitmq.example.org/"),
        ("amqp://192.0.2.1:5672/", "amqp://192.0.2.1:5672/"),
        ("amqp://[2001:db8::1]:5672/", "amqp://[2001:db8::1]:5672/"),
        ("http://localhost:9000", "http://localhost:9000"),
    ],
)
def test_only_a_service_beside_the_cluster_gets_its_namespace(url: str, expected: str) -> None:
    assert in_url(url, "mail") == expected


def test_every_server_of_a_cluster_resolves_everywhere() -> None:
    spec = {
        "rabbitmq": {
            "url": "amqp://rabbitmq:5672/%2F",
            "managementURL": "http://rabbitmq:15672",
            "secretRef": {"name": "r"},
        },
        "cassandra": {
            "contactPoints": ["cassandra", "c.example.org"],
            "localDatacenter": "dc1",
            "keyspace": "postroad",
            "secretRef": {"name": "c"},
            "tls": {"mode": "Disabled"},
        },
        "s3": {"url": "http://s3:9000", "secretRef": {"name": "s"}},
    }

    found = spec_of({"metadata": {"namespace": "mail"}, "spec": spec})

    assert found.rabbitmq.url == "amqp://rabbitmq.mail.svc:5672/%2F"
    assert found.rabbitmq.management_url == "http://rabbitmq.mail.svc:15672"
    assert found.cassandra.contact_points == ["cassandra.mail.svc", "c.example.org"]
    assert found.s3.url == "http://s3.mail.svc:9000"
    assert found.cassandra.local_datacenter == "dc1"
