"""The Kubernetes API server, through aiohttp; credentials as `kubernetes` reads them."""
