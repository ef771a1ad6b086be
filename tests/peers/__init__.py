"""Other mail servers as programs of their own, and what postroad and they make of their mail.

`make test-peers` runs the tests; `make bench ROOM=mta CASE=peers` measures beside the same servers.
"""
