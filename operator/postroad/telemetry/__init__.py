"""Log fields and metrics, declared once."""
