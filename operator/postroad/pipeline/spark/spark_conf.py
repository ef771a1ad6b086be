"""Cassandra and S3 as settings of Spark.

They are given to a session that runs: PySpark would write what it starts with onto the command line
of Java, secrets too. Only the authorities of the object store are options of Java itself."""

from collections.abc import Iterable, Mapping

from postroad.adapters.cassandra.connection import Access as CassandraAccess
from postroad.adapters.s3.clients import Access as S3Access
from postroad.domain.queues.names import QueueName
from postroad.errors import InvalidSettings
from postroad.pipeline.java.key_stores import PASSWORD, KeyStores
from postroad.pipeline.spark.session import SETTINGS
from postroad.tls import ClientTls, Encryption

_NO_SCAN = str(2**62)
"""Partitions from which on the connector would read whole tables instead."""

_CONNECTION_MILLISECONDS = "60000"
"""Time that a new connection waits for the tables of all keyspaces, which it reads first. When they
come later, the connector goes on without them, and finds no keyspace of the queue. Its default
is 5 s."""

_CIPHERS = ",".join(
    (
        "TLS_AES_256_GCM_SHA384",
        "TLS_AES_128_GCM_SHA256",
        *(
            f"TLS_ECDHE_{kind}_WITH_AES_{cipher}"
            for kind in ("ECDSA", "RSA")
            for cipher in ("256_GCM_SHA384", "128_GCM_SHA256")
        ),
    )
)
"""Of TLS 1.3, and of 1.2 with forward secrecy: those that the connector would use without are old
ones alone, which servers refuse."""


def cassandra_settings(access: CassandraAccess, stores: KeyStores) -> Mapping[str, str]:
    """Return the connector's settings. Raises: InvalidSettings, CredentialsMissing, TlsRefused."""
    given = {
        "connection.host": ",".join(access.contact_points),
        "connection.port": str(access.port),
        "connection.localDC": access.local_datacenter,
        "input.consistency.level": "LOCAL_QUORUM",
        "connection.timeoutMS": _CONNECTION_MILLISECONDS,
        # Any number of partitions is asked one by one.
        "sql.inClauseToJoinConversionThreshold": "1",
        "sql.inClauseToFullScanConversionThreshold": _NO_SCAN,
    }
    login = None if access.login_folder is None else access.login_folder.read()
    username = access.username if login is None else login.username
    password = access.password if login is None else login.password
    if username is not None:
        given |= {"auth.username": username, "auth.password": password or ""}
    if access.encryption is not Encryption.DISABLED:
        given |= _encrypted(access, stores)
    return {f"spark.cassandra.{name}": value for name, value in given.items()}


def _encrypted(access: CassandraAccess, stores: KeyStores) -> Mapping[str, str]:
    if access.encryption is Encryption.VERIFY_FULL:
        raise InvalidSettings(
            "POSTROAD_CASSANDRA_TLS=verify-full: Spark's connector to Cassandra checks the "
            "authority of a certificate, and no names",
            hint="run the pipeline with verify-ca and an authority that vouches for Cassandra's "
            "nodes alone (POSTROAD_CASSANDRA_CA_FILE)",
        )
    tls = access.tls
    given = {
        "enabled": "true",
        "enabledAlgorithms": _CIPHERS,
        "trustStore.path": str(stores.trusted("cassandra", tls)),
        "trustStore.password": PASSWORD,
        "clientAuth.enabled": "false",
    }
    if tls.certificate is not None:
        given |= {
            "clientAuth.enabled": "true",
            "keyStore.path": str(stores.shown("cassandra", tls.certificate, tls.key)),
            "keyStore.password": PASSWORD,
        }
    return {f"connection.ssl.{name}": value for name, value in given.items()}


def java_settings(
    access: S3Access, stores: KeyStores, options: Iterable[str] = ()
) -> Mapping[str, str]:
    """Return what a session has to start with so that Java trusts the store's authorities, and has
    these options too. Raises: TlsRefused."""
    name = "spark.driver.extraJavaOptions"
    return {name: " ".join((SETTINGS[name], *options, *trust_options(access, stores)))}


def trust_options(access: S3Access, stores: KeyStores) -> tuple[str, ...]:
    """Return the options with which Java trusts the store's authorities. Raises: TlsRefused."""
    if access.endpoint is not None and not access.endpoint.startswith("https:"):
        return ()
    store = stores.trusted("s3", ClientTls(access.ca_file))
    options = {"": store, "Password": PASSWORD, "Type": "PKCS12"}
    return tuple(f"-Djavax.net.ssl.trustStore{name}={each}" for name, each in options.items())


def s3_settings(access: S3Access) -> Mapping[str, str]:
    """Return Hadoop's settings of the store. Raises: CredentialsMissing."""
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
