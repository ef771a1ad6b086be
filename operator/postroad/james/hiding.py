"""Rules by which James' browse finds rows, and by which it misses some; the configurations that his
events record. Pure. Source: Apache James, CassandraMailQueueBrowser, BucketedSlices."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from postroad.domain.configuration.history import ConfigurationEvent, versions
from postroad.domain.configuration.rules import ViewConfiguration
from postroad.domain.queues.entries import Partition
from postroad.errors import ConfigurationRefused, InvalidInput

EVENT_TYPE = "cassandra-mail-queue-view-configuration"


def configurations_of(events: Iterable[Mapping[str, Any]]) -> tuple[ViewConfiguration, ...]:
    """Return the configurations that his events record, oldest first. Raises: InvalidInput for an
    event of another form, and for a window below a second, with which James divides by zero."""
    found = []
    for event in events:
        try:
            if event["type"] != EVENT_TYPE:
                raise InvalidInput(f"James' event has the unknown type {event['type']!r}")
            found.append(
                ViewConfiguration(
                    timedelta(seconds=int(event["sliceWindow"])),
                    int(event["bucketCount"]),
                    int(event["updateBrowseStartPace"]),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"an event of James cannot be read: {error!r}") from error
    return tuple(found)


def left_to_record(
    history: Sequence[ConfigurationEvent], found: Iterable[ViewConfiguration]
) -> tuple[ViewConfiguration, ...]:
    """Return what of his configurations a history lacks that began with them. Raises:
    ConfigurationRefused for one that began otherwise, InvalidInput where he has recorded none."""
    distinct = tuple(each for each, _ in groupby(found))
    if not distinct:
        raise InvalidInput(
            "James has recorded no configuration of his view",
            hint="he does when he starts; or give the queue its own, as `spec.view` or --create",
        )
    recorded = tuple(versions(history).values())
    if recorded != distinct[: len(recorded)]:
        raise ConfigurationRefused(
            "the queue has a configuration history of its own already",
            hint="import before the queue is created: a history begins once",
        )
    return distinct[len(recorded) :]


def hidden_by(
    place: Partition, browse_start: datetime | None, configuration: ViewConfiguration | None
) -> str | None:
    """Return why his browse does not read a partition; None: it does. Without a configuration, its
    grid of slices and its buckets are not known, and hide nothing."""
    if browse_start is None or place.slice_start < browse_start:
        return "before his browse start"
    if configuration is None:
        return None
    if place.bucket_id >= configuration.bucket_count:
        return "in a bucket that his bucketCount no longer has"
    if (place.slice_start - browse_start) % configuration.slice_window:
        return "in a slice that his sliceWindow does not cut"
    return None
