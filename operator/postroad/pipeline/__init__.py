"""The data pipeline: keeps what the view forgets, and answers from it.

Decisions are pure modules of this package; `spark` alone touches PySpark. What changes a queue goes
back to the engine's own operations. Source: ADR 0047."""
