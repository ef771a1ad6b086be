"""Cassandra and S3 as settings of Spark.

They are given to a session that runs: PySpark would write what it starts with onto the command line
of Java, secrets too.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.adapters.cassandra.access import Access as CassandraAccess
from postroad.adapters.s3.access import Access as S3Access
from postroad.domain.names import QueueName
from postroad.errors import InvalidSettings
from postroad.tls import Encryption

_NO_SCAN = str(2**62)
"""Partitions from which on the connector would read whole tables instead."""


def cassandra_settings(access: CassandraAccess) -> Mapping[str, str]:
    """Return the connector's settings. Raises: InvalidSettings, CredentialsMissing."""
    if access.encryption is not Encryption.DISABLED:
        raise InvalidSettings("POSTROAD_CASSANDRA_TLS: the pipeline reads without TLS only")
    given = {
        "connection.host": ",".join(access.contact_points),
        "connection.port": str(access.port),
        "connection.localDC": access.local_datacenter,
        "input.consistency.level": "LOCAL_QUORUM",
        # Any number of partitions is asked one by one.
        "sql.inClauseToJoinConversionThreshold": "1",
        "sql.inClauseToFullScanConversionThreshold": _NO_SCAN,
    }
    login = None if access.login_folder is None else access.login_folder.read()
    username = access.username if login is None else login.username
    password = access.password if login is None else login.password
    if username is not None:
        given |= {"auth.username": username, "auth.password": password or ""}
    return {f"spark.cassandra.{name}": value for name, value in given.items()}


def s3_settings(access: S3Access) -> Mapping[str, str]:
    """Return Hadoop's settings of the store. Raises: InvalidSettings, CredentialsMissing."""
    if access.ca_file is not None:
        raise InvalidSettings(
            "POSTROAD_S3_CA_FILE: the pipeline knows the authorities of Java only"
        )
    given = {
        "endpoint.region": access.region,
        # Without it, writes to stores that are like S3 hang.
        "directory.marker.retention": "keep",
        "attempts.maximum": "4",
        "retry.limit": "4",
        "connection.establish.timeout": "5000",
    }
    if access.endpoint is not None:
        given |= {
            "endpoint": access.endpoint,
            "path.style.access": "true",
            "connection.ssl.enabled": str(access.endpoint.startswith("https:")).lower(),
        }
    access_key, secret_key = access.keys
    if access_key is not None:
        given |= {
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "access.key": access_key,
            "secret.key": secret_key or "",
        }
    return {f"fs.s3a.{name}": value for name, value in given.items()}


def lake_folder(bucket: str, queue: QueueName) -> str:
    """Return the folder whose part `lake` has the tables of a queue."""
    return f"s3a://{bucket}/{queue}"
