"""The embedded engine: spool files and a crash-only log-structured queue in one directory.

FORMAT.md draws every byte and argues every crash; read it first. From the bottom up: `log` (bytes,
lanes, spool files, slots), `store` (one open store, from enqueue to recovery), `rpc` (the socket
for other processes), `offline_tools` (verify, dump, rebuild); `mail_queue` is the port.
Modules cite the requirements that they meet, by number (docs/requirements.md).
Source: 002, 003."""
