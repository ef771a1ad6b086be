"""Other mail servers as programs of their own, and how they and postroad handle each other's mail.

`make test-peers` runs the tests; `make bench ROOM=mta CASE=peers` measures beside the same servers.
"""
