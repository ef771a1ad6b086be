"""The rules of a queue's view configuration.

`rules` has the values and what may follow what; `history` decides on a wanted configuration,
numbers the events, and moves processes to a new version, readers first; `documents` writes events
for Cassandra and for the resource's status; `consistency` holds a status against the history;
`advice` judges window and buckets by the mail. `postroad.configuration` reads and writes.
Source: ADR 0005."""
