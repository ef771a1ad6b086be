"""Alerts of the chart: the faults that they are for, recorded."""
