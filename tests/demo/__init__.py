"""`make demo`: from `kubectl apply` to delivered mail, on real servers, on this machine."""
