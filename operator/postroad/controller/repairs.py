"""Decides what an administrator reads about a repair that the operator made on a server: pure.

The first creation, and options that follow the resources, are no repairs. Others put back what was
changed behind the operator's back, and may be too late for the mail in it: the condition is false
until the next reconcile, so that an Event names the repair.
"""

from __future__ import annotations

from collections.abc import Mapping

from postroad.controller.queue_resource import Queue
from postroad.ports.view import SchemaChanges

MAIL_TABLES = frozenset(
    {
        "configuration_events",
        "dead_letters",
        "deleted_mails",
        "deliveries",
        "enqueued_mails",
        "limits",
        "slices",
    }
)
"""Tables of every release, whose loss loses mail or what is known of it. A later table is missing
after an upgrade too."""


def lost_tables(before: Mapping[str, object] | None, changes: SchemaChanges) -> str | None:
    """Return a message about tables that were dropped, None when none was. `before`: the tables'
    options that the status had."""
    lost = sorted(MAIL_TABLES.intersection(changes.created)) if before else []
    if not lost:
        return None
    return (
        f"tables were gone and are made anew, empty: {', '.join(lost)}; restore them from a backup "
        "where their mail still waited"
    )


def undone_alterations(
    before: Mapping[str, object] | None, now: Mapping[str, object], changes: SchemaChanges
) -> str | None:
    """Return a message about options that this QueueCluster did not alter, None when all are its
    own."""
    if before != now or not changes.altered:
        return None
    tables = ", ".join(changes.altered)
    return (
        "options of tables were altered, by hand or by another QueueCluster over this keyspace, "
        f"and are as declared here again: {tables}"
    )


def missing_queues(queue: Queue) -> tuple[str, str]:
    """Return reason and message about queues that a configured MailQueue lacked in RabbitMQ."""
    name = queue.name
    return "QueuesWereMissing", (
        f"the queues of exchange {name.exchange} were missing and are made anew, empty: where the "
        "cluster has a managementURL, maintenance publishes waiting mail again; at once does it "
        f"`kubectl mailqueue republish {name.name} -n {name.namespace} --older-than 5m`"
    )


def missing_bucket(bucket: str) -> tuple[str, str]:
    """Return reason and message about a bucket that a configured MailQueue lacked."""
    return "BucketWasMissing", (
        f"bucket {bucket} was missing and is made anew, empty: mail whose bytes were in it becomes "
        "dead letters; copy the objects back, then requeue them"
    )
