"""The distributed engine: each operation over the ports.

Pure decisions are in `domain` (dispatch, references, entries); the modules here carry them out, one
operation each. `replacement` holds the steps that every change of a waiting mail goes through.
Invariants are those of docs/invariants.md."""
