"""Connections to the servers that variables name, which a test can cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from postroad.settings import Settings, from_environment
from stack.forwarder import Forwarder


@dataclass(frozen=True)
class Lines:
    """A connection to each server, and the variables that lead through them."""

    forwarders: Mapping[str, Forwarder]
    variables: Mapping[str, str]

    @classmethod
    async def to(cls, variables: Mapping[str, str]) -> Lines:
        broker = urlsplit(variables["POSTROAD_RABBITMQ_URI"])
        store = urlsplit(variables["POSTROAD_S3_ENDPOINT"])
        ports = {
            "rabbitmq": broker.port or 5672,
            "cassandra": int(variables["POSTROAD_CASSANDRA_PORT"]),
            "s3": store.port or 80,
        }
        forwarders = {name: Forwarder(port) for name, port in ports.items()}
        for each in forwarders.values():
            await each.start()
        login = broker.netloc.rpartition("@")[0]
        through = {
            **variables,
            "POSTROAD_RABBITMQ_URI": urlunsplit(
                broker._replace(netloc=f"{login}@127.0.0.1:{forwarders['rabbitmq'].port}")
            ),
            "POSTROAD_CASSANDRA_PORT": str(forwarders["cassandra"].port),
            "POSTROAD_S3_ENDPOINT": f"http://127.0.0.1:{forwarders['s3'].port}",
        }
        return cls(forwarders, through)

    @property
    def settings(self) -> Settings:
        return from_environment(self.variables)

    async def close(self) -> None:
        for each in self.forwarders.values():
            await each.mend()
            await each.close()
