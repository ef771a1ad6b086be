"""The commands on a store that no process has open: verify, dump, rebuild."""
