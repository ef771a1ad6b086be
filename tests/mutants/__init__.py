"""Mutants: small faults put into the code one at a time, to see whether a test notices.

`python -m mutants ROOM` (or `make mutants ROOM=domain`) draws faults by a seed over the modules of
a room, runs for each the tests that execute its line, and lists those that no test notices. A
survivor is read and judged: it is either a missing test or a fault without a consequence.
"""
