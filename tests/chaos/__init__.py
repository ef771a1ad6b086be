"""Chaos: processes work on a queue, a seed draws faults, and a checker in the manner of Jepsen's
total queue judges what each process recorded. See docs/chaos.md."""
