"""The errors that postroad raises, as a tree, which `help(postroad.errors)` draws.

`transient`: the same call, repeated unchanged, can succeed. `hint`: what the administrator can do.
An error of another kind counts as transient, so that no mail is dropped on a guess."""

from typing import Self

EXTRAS = {
    **dict.fromkeys(("aiohttp", "cryptography", "dns", "uvloop"), "smtp"),
    **dict.fromkeys(
        ("boto3", "botocore", "cassandra", "obstore", "pika", "zstandard"), "distributed"
    ),
    **dict.fromkeys(("argon2", "flufl", "jwt", "scramp"), "intake"),
    **dict.fromkeys(("fastapi", "jinja2", "starlette", "uvicorn"), "console"),
    **dict.fromkeys(("kopf", "kubernetes"), "operator"),
    **dict.fromkeys(("matplotlib", "pandas", "pyarrow", "pyspark"), "pipeline"),
    "opentelemetry": "tracing",
}
"""The extras that bring what an installation for one directory lacks, by module."""


def lacking_library(error: ImportError) -> str | None:
    """Return the library of EXTRAS that an import did not find; None: the import failed otherwise.

    >>> lacking_library(ModuleNotFoundError(name="cassandra.cluster"))
    'cassandra'
    """
    library = (error.name or "").partition(".")[0]
    return library if library in EXTRAS else None


CREATE = "let `postroad intake --create` or `postroad worker --create` make what is missing"
"""For hints: how to create a queue without an operator."""


class PostroadError(Exception):
    """postroad could not carry out the call."""

    transient: bool = False
    """True if the same call can succeed later, unchanged."""

    hint: str = ""
    """Remedy that the administrator can do about it; empty when the message is enough."""

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        if hint is not None:
            self.hint = hint

    def explain(self) -> str:
        """Return the message, with the hint in brackets."""
        return f"{self} ({self.hint})" if self.hint else str(self)


class InvalidInput(PostroadError):
    """The value cannot be used as it is."""


class InvalidMail(InvalidInput):
    """The mail cannot be queued as it is."""


class MailTooLarge(InvalidMail):
    """The mail is larger than this queue accepts."""


class InvalidQueueName(InvalidInput):
    """A queue is named <namespace>.<name>, both DNS labels."""


class InvalidQueueURL(InvalidInput):
    """A queue is opened by embedded:///DIR, memory://NAME or distributed://NAMESPACE.NAME."""


class KeyReused(InvalidInput):
    """The enqueue key stands for a mail with another sender, other recipients or other content."""

    hint = "use a key of its own for each mail; a key is free after 24 hours"


class UnreadableReference(InvalidInput):
    """The message is no reference to an entry that this version can read."""


class InvalidSettings(InvalidInput):
    """The settings contradict each other or miss something."""


class QueueNotFound(PostroadError):
    """Nothing was created under this name."""

    hint = f"apply a MailQueue, or {CREATE}"


class MailNotFound(PostroadError):
    """No mail waits under this id, and there is no dead letter of it."""


class QueueClosed(PostroadError):
    """The queue was closed by its owner."""


class QueueInUse(PostroadError):
    """Consumers read the queue."""


class ConfigurationError(PostroadError):
    """The queue's configuration stands in the way."""


class ConfigurationRefused(ConfigurationError):
    """The change would make mail invisible."""


class ConfigurationConflict(ConfigurationError):
    """Another process appended to the configuration history first."""

    transient = True


class ConfigurationStale(ConfigurationError):
    """The configuration was last read longer ago than the lease allows."""

    transient = True
    hint = "Cassandra does not answer; the process reads the configuration as soon as it does"


class HistoryMissing(ConfigurationError):
    """Rows exist whose configuration history is gone."""

    hint = "record how the queue was configured with `postroad config adopt`"


class ServerError(PostroadError):
    """An outside server did not carry out a request."""


class BrokerError(ServerError):
    """RabbitMQ did not carry out a request."""


class BrokerUnavailable(BrokerError):
    """RabbitMQ cannot be reached or does not answer in time."""

    transient = True


class NotPublished(BrokerUnavailable):
    """The message was not sent, so RabbitMQ cannot have it: there is no connection, or too many
    messages before it have no confirm."""


class BrokerRefused(BrokerError):
    """RabbitMQ refused the request."""


class Unroutable(BrokerError):
    """The exchange has no queue behind it."""

    transient = True
    hint = f"the operator declares what is missing; without one, {CREATE}"


class StreamRefused(BrokerError):
    """RabbitMQ refused where events of one stream are to wait, and nothing else."""

    hint = "the operator declares it; delete a queue that was declared otherwise"

    def __init__(self, stream: str = "", why: str = "") -> None:
        super().__init__(why)
        self.stream = stream


class ExchangeGone(BrokerError):
    """An exchange is missing, and the message was under way with others: RabbitMQ may have it."""

    transient = True
    hint = Unroutable.hint


class ViewError(ServerError):
    """Cassandra did not carry out a request."""


class ViewUnavailable(ViewError):
    """Cassandra cannot be reached or does not answer in time."""

    transient = True


class ViewRefused(ViewError):
    """Cassandra refused the request."""


class HistoryTooNew(ViewRefused):
    """The configuration history has an event that this release cannot read."""

    hint = (
        "run the release that wrote it, or a later one: this one cannot tell where the queue's mail"
        " lies, and changes nothing of it"
    )


class Undecodable(ViewError):
    """The view holds what this release cannot decode."""

    hint = "another release of postroad wrote it, or it was changed by hand"


class BlobsError(ServerError):
    """The object store did not carry out a request."""


class BlobsUnavailable(BlobsError):
    """The object store cannot be reached or does not answer in time."""

    transient = True


class BlobsRefused(BlobsError):
    """The object store refused the request."""


class BlobMissing(BlobsError):
    """There is no object under this key."""


class KubernetesError(ServerError):
    """The Kubernetes API server did not carry out a request."""


class KubernetesUnavailable(KubernetesError):
    """The Kubernetes API server cannot be reached, or is overloaded."""

    transient = True


class KubernetesConflict(KubernetesError):
    """The object was changed or deleted by another client meanwhile."""

    transient = True


class KubernetesRefused(KubernetesError):
    """The Kubernetes API server refused the request."""


class CredentialsRefused(ServerError):
    """The server refused the credentials."""

    hint = "check the Secret or the POSTROAD_* variables that hold them"


class TlsRefused(ServerError):
    """The server's certificate is not accepted, or the server offers no TLS."""


class CertificateUnusable(ServerError):
    """A Secret holds no certificate with its key."""


class CredentialsMissing(ServerError):
    """The Secret that holds the credentials is missing or incomplete."""

    transient = True


class AmbientCredentialsDenied(PostroadError):
    """The QueueCluster names no credentials, and the operator may not use those of its pod."""

    hint = "name a Secret with spec.s3.secretRef, or run the operator with --ambient-credentials"


class ClusterNotFound(PostroadError):
    """There is no QueueCluster of this name."""

    transient = True


class ClusterNotAllowed(PostroadError):
    """The QueueCluster does not serve this namespace."""


class ResourceConflict(PostroadError):
    """An object at a server is claimed by another QueueCluster."""


class NameTaken(PostroadError):
    """An object of this name exists and has another owner."""

    transient = True


class LeadershipLost(PostroadError):
    """This operator does not hold the Lease: another one may be at work."""

    transient = True


class BucketNotOwned(PostroadError):
    """The bucket holds the bytes of another view, or of a later state of this one."""


class ViewOutdated(BucketNotOwned):
    """The view was restored from a backup, or is a copy: the bucket holds the bytes of its later
    state."""


class DeadlineExceeded(PostroadError):
    """The mail was not queued before its deadline, and was withdrawn."""

    transient = True


class ClockSkew(PostroadError):
    """The local clock is further from the view's clock than tolerated."""

    transient = True
    hint = "synchronise the clocks (NTP)"


class ReceiverEnded(PostroadError):
    """A process that receives mail for this one has ended."""

    transient = True
    hint = "its log says why; start this process again"


class EntryEnded(PostroadError):
    """The item was already ended."""


class EntryLost(PostroadError):
    """The process that leased the item for this one is gone. An ending that was under way may have
    been recorded; if it was not, the mail is redelivered."""


class NotInstalled(PostroadError):
    """A library that this command needs is not installed."""

    @classmethod
    def lacking(cls, library: str, extra: str | None = None) -> Self:
        """Return the error about a library of EXTRAS; `extra`: the one that brings all of it."""
        named = extra or EXTRAS[library]
        return cls(f"{library} is not installed", hint=f"pip install 'postroad[{named}]'")


class LakeNotFound(PostroadError):
    """Nothing was archived yet."""

    hint = "run `postroad pipeline archive` first"


class LakeTooNew(PostroadError):
    """A later release wrote the lake."""

    hint = "use the release that wrote it, or a later one"


class JobFailed(PostroadError):
    """Spark did not carry out a job."""

    transient = True


class ArchiveUnderWay(PostroadError):
    """Another run of the archive is under way."""

    transient = True
    hint = "wait for its end; the claim of a run that died lapses within ten minutes"


class StoreDamaged(PostroadError):
    """The embedded store failed verification.

    It never opens empty instead."""

    hint = "run `postroad verify DIR`, then `postroad rebuild DIR`"


class StoreFull(PostroadError):
    """There is no space left for one more mail."""

    transient = True
    hint = "free space or inodes on the queue's file system"


class TooManyOpenFiles(StoreFull):
    """The process, or the system, may open no more files."""

    hint = "raise the limit of open files (ulimit -n, or LimitNOFILE= of systemd)"


class StoreFailed(PostroadError):
    """The embedded store's disk refused a write or a sync."""

    transient = True
    hint = "repair the disk, then start the process again; it recovers by itself"


class StoreUnavailable(PostroadError):
    """The process that owns the embedded store does not answer."""

    transient = True


class EnqueueUnknown(StoreUnavailable):
    """The process that owns the embedded store went before it answered: the mail may be queued."""

    hint = "enqueue with a key: then the repetition of a call is the same mail"


class StoreInUse(PostroadError):
    """A process owns the embedded store."""

    hint = "stop that process first"
