"""Users of the real Cassandra and S3, with the rights of pods in docs/operator/servers.md."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import servers
from postroad.domain.queues.names import QueueName
from support.servers import cql, store_client

DOCUMENT = Path(__file__).parents[2] / "docs" / "operator" / "servers.md"
PASSWORD = "secret-of-the-test"
ACCOUNT = """<Account><Access>{name}</Access><Secret>{password}</Secret><Role>user</Role>
<UserID>0</UserID><GroupID>0</GroupID><ProjectID>0</ProjectID></Account>"""


def documented(server: str) -> list[str]:
    """Return the rights of the column for pods, in the row of a server."""
    lines = DOCUMENT.read_text().splitlines()
    (row,) = [each for each in lines if each.startswith(f"| {server} |")]
    *_, pods = row.rstrip("| ").split(" | ")
    return re.findall(r"`([A-Za-z:0-9]+)`", pods)


def make_cassandra_user(keyspace: str) -> str:
    """Make a user who has the documented rights on a keyspace; return its name."""
    name = servers.fresh()
    cql(f"CREATE ROLE {name} WITH PASSWORD = '{PASSWORD}' AND LOGIN = true")
    for right in documented("Cassandra"):
        cql(f"GRANT {right} ON KEYSPACE {keyspace} TO {name}")
    return name


def remove_cassandra_user(name: str) -> None:
    cql(f"DROP ROLE {name}")


@dataclass(frozen=True)
class StoreUser:
    """A user of S3, as versitygw makes one."""

    name: str

    @classmethod
    def make(cls) -> StoreUser:
        """Make one without rights."""
        user = cls(servers.fresh())
        _ask("create-user", ACCOUNT.format(name=user.name, password=PASSWORD))
        return user

    def allow(self, bucket: str, shared_by: QueueName | None = None) -> None:
        """Give the documented rights on a bucket, or on the prefix of a queue that shares it."""
        rights = documented("S3, a bucket of the queue's own")
        of_bucket = [each for each in rights if each == "s3:ListBucket"]
        arn = f"arn:aws:s3:::{bucket}"
        prefix = "" if shared_by is None else f"{shared_by}/"
        statements = [
            (of_bucket, arn),
            ([each for each in rights if each not in of_bucket], f"{arn}/{prefix}*"),
        ]
        policy = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"AWS": [self.name]},
                    "Action": actions,
                    "Resource": resource,
                }
                for actions, resource in statements
            ],
        }
        client = store_client()
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        client.close()

    def remove(self) -> None:
        _ask(f"delete-user?access={self.name}")


def _ask(path: str, body: str = "") -> None:
    """Send a request of an administrator of versitygw."""
    variables = os.environ
    keys = Credentials(variables["POSTROAD_S3_ACCESS_KEY"], variables["POSTROAD_S3_SECRET_KEY"])
    url = f"{variables['POSTROAD_S3_ENDPOINT']}/{path}"
    request = AWSRequest("PATCH", url, data=body.encode())
    S3SigV4Auth(keys, "s3", variables["POSTROAD_S3_REGION"]).add_auth(request)
    signed = Request(url, body.encode(), dict(request.headers.items()), method="PATCH")
    with urlopen(signed, timeout=10) as answer:
        assert answer.status < 300, answer.status
