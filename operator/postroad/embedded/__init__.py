"""The embedded engine: spool files and a crash-only log-structured queue in one directory.

FORMAT.md draws every byte and argues every crash; read it first. From the bottom up:
`layout` (paths), `frames`, `envelope_records`, `records` (bytes), `segments`, `lanes`,
`checkpoints` (the log), `spool_files`, `slots` (the mails), `index`, `ready_queues` (memory),
`recovery`, `engine`, `items`, `owner` (the port), `wire`, `server`, `client` (other processes),
`verification`, `rebuild`.
Modules cite the requirements that they meet, by number (docs/requirements.md).
Source: 002, 003.
"""
