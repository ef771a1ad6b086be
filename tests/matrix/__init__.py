"""The contract suites over other versions of the servers, and over TLS: `make test-matrix`."""
