"""The tables of the lake over Iceberg."""
