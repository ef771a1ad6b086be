"""Every failure that postroad can name.

::

    PostroadError
    ├── InvalidInput            the caller's value cannot be used as it is
    │   ├── InvalidMail         no recipients, a malformed address, too large
    │   ├── InvalidQueueName
    │   ├── InvalidQueueURL
    │   ├── UnreadableReference a message of the broker that is none of ours
    │   └── InvalidSettings
    ├── QueueNotFound           nothing was created under this name
    ├── QueueClosed             the handle was closed by its owner
    ├── ConfigurationError
    │   ├── ConfigurationRefused    a change that would make mail invisible
    │   ├── ConfigurationConflict   somebody else appended to the history first
    │   ├── ConfigurationStale      the last good read is older than the lease
    │   └── HistoryMissing          data exist whose history is gone
    ├── ServerError             an outside server did not do what it was asked
    │   ├── BrokerError, ViewError, BlobsError
    │   │   ├── BrokerUnavailable, ViewUnavailable, BlobsUnavailable   (transient)
    │   │   └── BrokerRefused, ViewRefused, BlobsRefused               (permanent)
    │   ├── Unroutable          the broker has no queue behind the exchange
    │   ├── Undecodable         the view holds what this release cannot decode
    │   ├── BlobMissing         no object under this key
    │   ├── KubernetesError     the API server said no
    │   │   ├── KubernetesUnavailable   it is away or overloaded (transient)
    │   │   ├── KubernetesConflict      the object was changed meanwhile (transient)
    │   │   └── KubernetesRefused       the request is invalid or forbidden
    │   ├── CredentialsRefused
    │   ├── TlsRefused
    │   ├── CertificateUnusable a Secret holds no certificate with its key
    │   └── CredentialsMissing  a Secret that holds them is missing or incomplete (transient)
    ├── ClusterNotFound         a MailQueue names a QueueCluster that is not there (transient)
    ├── ClusterNotAllowed       the QueueCluster serves other namespaces only
    ├── NameTaken               a child's name belongs to somebody else's object (transient)
    ├── BucketNotOwned          the bucket's bytes are another view's, or of a later state
    ├── DeadlineExceeded        enqueue took longer than its deadline; it was withdrawn
    ├── ClockSkew               the local clock is further from the view's than tolerated
    ├── EntryEnded               the item was already ended, by this consumer or another
    ├── EntryLost                who kept the item for this process is gone; it may come again
    ├── NotInstalled            a library that only some installations have is missing
    ├── StoreDamaged            an embedded store failed verification; it never opens empty
    ├── StoreFull               no space or inodes left for one more mail (transient)
    ├── StoreFailed             the disk refused a write or a sync; the engine stopped (transient)
    ├── StoreInUse              a process owns the store that should be at rest
    └── StoreUnavailable        the process that owns the store does not answer (transient)

`transient` answers whether trying again, unchanged, can help; `hint` says what the person who runs
the system can do. An unforeseen error counts as transient: mail is never dropped on a guess.
"""

from __future__ import annotations

CREATE = "let `postroad intake --create` or `postroad worker --create` make what is missing"
"""How a queue comes to be without an operator. Hints are read by people at a shell."""


class PostroadError(Exception):
    """postroad could not do what was asked."""

    transient: bool = False
    """Whether the same call can succeed later without anybody changing anything."""

    hint: str = ""
    """What the operator of the system can do about it; empty when the message says it all."""

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])
        if hint is not None:
            self.hint = hint

    def explain(self) -> str:
        """Return the message and the hint as one sentence or two."""
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


class UnreadableReference(InvalidInput):
    """The message is no reference to an entry that this version can read."""


class InvalidSettings(InvalidInput):
    """The settings contradict each other or miss something."""


class QueueNotFound(PostroadError):
    """Nothing was created under this name."""

    hint = f"apply a MailQueue, or {CREATE}"


class QueueClosed(PostroadError):
    """The queue was closed by its owner."""


class ConfigurationError(PostroadError):
    """The queue's configuration stands in the way."""


class ConfigurationRefused(ConfigurationError):
    """The change would make mail invisible."""


class ConfigurationConflict(ConfigurationError):
    """Somebody else appended to the configuration history first."""

    transient = True


class ConfigurationStale(ConfigurationError):
    """The configuration was last read longer ago than the lease allows."""

    transient = True
    hint = "the view could not be read for a while; reading goes on as soon as it answers"


class HistoryMissing(ConfigurationError):
    """Rows exist whose configuration history is gone."""

    hint = "record how the queue was configured with `postroad config adopt`"


class ServerError(PostroadError):
    """An outside server did not do what it was asked."""


class BrokerError(ServerError):
    """RabbitMQ did not do what it was asked."""


class BrokerUnavailable(BrokerError):
    """RabbitMQ cannot be reached or does not answer in time."""

    transient = True


class BrokerRefused(BrokerError):
    """RabbitMQ refused the request."""


class Unroutable(BrokerError):
    """The exchange has no queue behind it."""

    transient = True
    hint = f"the operator declares what is missing; without one, {CREATE}"


class ViewError(ServerError):
    """Cassandra did not do what it was asked."""


class ViewUnavailable(ViewError):
    """Cassandra cannot be reached or does not answer in time."""

    transient = True


class ViewRefused(ViewError):
    """Cassandra refused the request."""


class Undecodable(ViewError):
    """The view holds what this release cannot decode."""

    hint = "another release of postroad wrote it, or a person"


class BlobsError(ServerError):
    """The object store did not do what it was asked."""


class BlobsUnavailable(BlobsError):
    """The object store cannot be reached or does not answer in time."""

    transient = True


class BlobsRefused(BlobsError):
    """The object store refused the request."""


class BlobMissing(BlobsError):
    """There is no object under this key."""


class KubernetesError(ServerError):
    """The Kubernetes API server said no."""


class KubernetesUnavailable(KubernetesError):
    """The Kubernetes API server cannot be reached, or has too much to do."""

    transient = True


class KubernetesConflict(KubernetesError):
    """The object was changed or deleted by somebody else meanwhile."""

    transient = True


class KubernetesRefused(KubernetesError):
    """The Kubernetes API server refused the request."""


class CredentialsRefused(ServerError):
    """The server refused the credentials."""

    hint = "check the Secret or the POSTROAD_* variables that hold them"


class TlsRefused(ServerError):
    """A server's certificate is not accepted, or it speaks no TLS where it should."""


class CertificateUnusable(ServerError):
    """A Secret holds no certificate with its key."""


class CredentialsMissing(ServerError):
    """The Secret that holds the credentials is missing or incomplete."""

    transient = True


class ClusterNotFound(PostroadError):
    """There is no QueueCluster of this name."""

    transient = True


class ClusterNotAllowed(PostroadError):
    """The QueueCluster does not serve this namespace."""


class NameTaken(PostroadError):
    """An object of this name exists and is somebody else's."""

    transient = True


class BucketNotOwned(PostroadError):
    """The bucket holds the bytes of another view, or of a later state of this one."""


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
    """The process that kept the item for this one is gone, and nothing more can be said about this
    entry. An ending that was under way may have got through; if none was, the mail comes again."""


class NotInstalled(PostroadError):
    """A library that this command needs is not installed."""

    hint = "install postroad with the extra `operator`"


class StoreDamaged(PostroadError):
    """The embedded store failed verification."""

    hint = "run `postroad verify DIR`, then `postroad rebuild DIR`"


class StoreFull(PostroadError):
    """There is no space left for one more mail."""

    transient = True
    hint = "free space or inodes on the queue's file system"


class StoreFailed(PostroadError):
    """The embedded store's disk refused a write or a sync."""

    transient = True
    hint = "see to the disk, then start the process again; it recovers by itself"


class StoreUnavailable(PostroadError):
    """The process that owns the embedded store does not answer."""

    transient = True


class StoreInUse(PostroadError):
    """A process owns the embedded store."""

    hint = "stop that process first"
