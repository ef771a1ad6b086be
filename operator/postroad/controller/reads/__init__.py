"""Objects that watches keep, so that a reconcile at rest costs no request."""
