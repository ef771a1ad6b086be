"""Schedules jobs on connections. Pure: events in, decisions out; clock and chance are passed in.
`Scheduler` is the whole of it for its callers; see ADR 0036."""
