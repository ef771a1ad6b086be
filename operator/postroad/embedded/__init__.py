"""The embedded engine: spool files and a crash-only log-structured queue in one directory.

FORMAT.md draws every byte and argues every crash; read it first. From the bottom up:
`layout` (places), `frames`, `records` (bytes), `segments`, `lanes`, `checkpoints` (the log),
`contents`, `slots` (the mails), `index`, `runners` (memory), `recovery`, `engine`, `items`,
`queue` (the port), `wire`, `server`, `client` (other processes), `verification`, `rebuilding`.
Modules cite the requirements that they meet, by number (docs/requirements.md).
Source: 002, 003.
"""
