"""Chaos: processes work on a queue, faults are drawn by a seed, and a checker in the manner of
Jepsen's total queue goes over what each of them recorded. See docs/chaos.md."""
