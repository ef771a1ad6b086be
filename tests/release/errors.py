"""Why a release is refused."""


class ReleaseRefused(Exception):
    """No release was made; the message says what to do."""
