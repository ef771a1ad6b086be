# ruff: noqa: S608  # the statements are built from constants of this file; values are always bound
"""The enqueue keys of a queue in Cassandra: lightweight transactions on a row that expires."""

from postroad.adapters.cassandra.connection.session import Row, Session, Statement
from postroad.adapters.cassandra.statements import insert
from postroad.adapters.cassandra.view import rows
from postroad.domain.queues.entries import EntryKey
from postroad.domain.queues.references import KEY_LIFETIME
from postroad.ports.enqueue_keys import KeyedEntry

LIFETIME = round(KEY_LIFETIME.total_seconds())

COLUMNS = (
    "slice_start",
    "bucket_id",
    "enqueue_id",
    "mail_id",
    "blob_key",
    "accepted_at",
    "digest",
    "is_accepted",
)

TAKE = Statement(
    insert("enqueue_keys", ("queue", "key_token", *COLUMNS))
    + f" IF NOT EXISTS USING TTL {LIFETIME}"
)
"""The first of several processes has the key; the answer to the others is what it wrote."""

CHANGE = Statement(
    f"UPDATE {{keyspace}}.enqueue_keys USING TTL {LIFETIME}"
    f" SET {', '.join(f'{each} = ?' for each in COLUMNS)}"
    " WHERE queue = ? AND key_token = ? IF enqueue_id = ? AND is_accepted = ?"
)
"""All columns, though few differ: they would expire one by one."""


async def take(session: Session, queue: str, token: bytes, keyed: KeyedEntry) -> KeyedEntry:
    [answer] = await session.execute(TAKE, (queue, token, *_values(keyed)))
    return keyed if answer["[applied]"] else _keyed_of(answer)


async def change(
    session: Session, queue: str, token: bytes, before: KeyedEntry, after: KeyedEntry
) -> bool:
    condition = (before.key.enqueue_id, before.is_accepted)
    [answer] = await session.execute(CHANGE, (*_values(after), queue, token, *condition))
    return bool(answer["[applied]"])


def _values(keyed: KeyedEntry) -> tuple[object, ...]:
    return (
        *keyed.key,
        keyed.mail_id,
        keyed.blob_key,
        keyed.accepted_at,
        keyed.digest,
        keyed.is_accepted,
    )


def _keyed_of(row: Row) -> KeyedEntry:
    return KeyedEntry(
        key=EntryKey(rows.instant(row["slice_start"]), row["bucket_id"], row["enqueue_id"]),
        mail_id=row["mail_id"],
        blob_key=row["blob_key"],
        accepted_at=rows.instant(row["accepted_at"]),
        digest=row["digest"],
        is_accepted=row["is_accepted"],
    )
