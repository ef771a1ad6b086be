"""Makes a release: `python -m release VERSION`, what `make release` runs."""
