"""What DuckDB makes of the same entries, by queries of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from postroad.domain.values.instants import microseconds
from postroad.pipeline.archive.planning import Stretch

TRAFFIC = """
WITH counted AS (
    SELECT e.*, coalesce(delivered_at, ended_at) AS over_at, unnest(outcomes) AS o FROM entries e
), one AS (
    SELECT counted.*, unnest(range(o.count)) FROM counted  -- one line for each recipient
), repeated AS (
    SELECT later.enqueue_id FROM entries earlier, entries later
    WHERE earlier.successor = later.enqueue_id AND earlier.state = 'delivered'
), domained AS (
    SELECT *, coalesce(delivered_at, ended_at) AS over_at, '' AS site, unnest(domains) AS domain,
           unnest(domain_counts) AS number
    FROM entries
), plain AS (
    SELECT domained.*, unnest(range(number)) FROM domained
), moved AS (
    SELECT 'accepted' AS what, accepted_at AS moment, sender_domain, domain, site, NULL AS waited
    FROM plain WHERE accepted_at = enqueued_at AND state <> 'withdrawn'
    UNION ALL
    SELECT o.kind, over_at, sender_domain, o.domain, o.site,
           epoch_ms(over_at) - epoch_ms(accepted_at) FROM one
    UNION ALL
    SELECT 'rejected', over_at, sender_domain, o.domain, o.site, NULL
    FROM one WHERE state = 'rejected' AND o.kind = 'deferred'
    UNION ALL
    SELECT state, over_at, sender_domain, domain, site,
           epoch_ms(over_at) - epoch_ms(accepted_at)
    FROM plain WHERE outcomes IS NULL AND state IN ('removed', 'rejected', 'delivered')
        AND enqueue_id NOT IN (FROM repeated)
    UNION ALL
    SELECT 'attempt', over_at, sender_domain, domain, site, NULL FROM (
        SELECT DISTINCT enqueue_id, over_at, sender_domain, o.domain, o.site FROM counted)
), bytes AS (
    SELECT over_at AS moment, sender_domain, domain, site, size_bytes FROM (
        SELECT DISTINCT enqueue_id, over_at, sender_domain, o.domain, o.site, size_bytes
        FROM counted WHERE o.kind = 'delivered')
), lines AS (
    SELECT date_trunc('hour', moment) AS hour, sender_domain, domain, site,
        count(*) FILTER (what = 'accepted') AS accepted,
        count(*) FILTER (what = 'delivered') AS delivered,
        count(*) FILTER (what = 'deferred') AS deferred,
        count(*) FILTER (what IN ('failed', 'rejected')) AS rejected,
        count(*) FILTER (what = 'removed') AS removed,
        count(*) FILTER (what = 'attempt') AS attempts,
        quantile_cont(waited, [0.5, 0.95, 0.99]) FILTER (what = 'delivered') AS waited
    FROM moved WHERE moment >= make_timestamptz($first) AND moment < make_timestamptz($before)
    GROUP BY ALL
), sizes AS (
    SELECT date_trunc('hour', moment) AS hour, sender_domain, domain, site, sum(size_bytes) AS bytes
    FROM bytes WHERE moment >= make_timestamptz($first) AND moment < make_timestamptz($before)
    GROUP BY ALL
)
SELECT epoch_us(hour) AS hour, sender_domain, domain, site, accepted, delivered, deferred, rejected,
       removed, attempts, coalesce(bytes, 0)::BIGINT AS bytes, waited
FROM lines LEFT JOIN sizes USING (hour, sender_domain, domain, site)
ORDER BY ALL
"""

REPLIES = """
SELECT o.domain, o.site, o.kind, coalesce(o.reason, '') AS reason, sum(o.count)::BIGINT AS count
FROM (SELECT coalesce(delivered_at, ended_at) AS moment, unnest(outcomes) AS o FROM entries)
WHERE moment >= make_timestamptz($first) AND moment < make_timestamptz($before)
GROUP BY ALL
"""

RECOVERIES = """
WITH reply AS (
    SELECT mail_id, moment, o.kind AS kind, o.domain AS domain, o.site AS site
    FROM (SELECT mail_id, coalesce(delivered_at, ended_at) AS moment, unnest(outcomes) AS o
          FROM entries)
    UNION ALL
    SELECT mail_id, delivered_at, 'delivered', unnest(domains), '' FROM entries
    WHERE outcomes IS NULL AND state = 'delivered'
), deferral AS (
    SELECT mail_id, domain, min((moment, site)) AS first FROM reply
    WHERE kind = 'deferred'
        AND moment >= make_timestamptz($first) AND moment < make_timestamptz($before)
    GROUP BY ALL
), fate AS (
    SELECT domain, first[2] AS site, EXISTS (
        FROM reply WHERE reply.mail_id = deferral.mail_id AND reply.domain = deferral.domain
            AND kind = 'delivered' AND moment > first[1]) AS recovered
    FROM deferral
)
SELECT domain, site, count(*), count(*) FILTER (recovered) FROM fate GROUP BY ALL
"""


def answer(files: Path, query: str, stretch: Stretch) -> list[tuple[Any, ...]]:
    """What DuckDB answers about the Parquet files of a folder."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE VIEW entries AS FROM '{files}/*.parquet'")
        values = {"first": microseconds(stretch.first), "before": microseconds(stretch.before)}
        return connection.execute(query, values).fetchall()
