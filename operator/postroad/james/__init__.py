"""Reads the mail queues of an Apache James server, and moves their mail into a queue of postroad.

`properties` reads his configuration files, `tables` his Cassandra tables, `blobs` and `encryption`
his contents; `mails` maps what he queues to a mail, `hiding` tells rows that his browse never
shows, both pure; `migration` moves. Source: ADR 0093."""
