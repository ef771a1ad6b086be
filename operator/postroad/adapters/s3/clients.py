"""obstore's clients, which send the requests of single objects."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property

from obstore.store import S3Store

from postroad.adapters.s3.access import Access
from postroad.tls import authorities

SILENCE = timedelta(seconds=8)
"""How long a store may send nothing before it counts as away."""

TRANSFER = timedelta(minutes=10)
"""How long one transfer may take while octets arrive."""

ANY = "any"
"""obstore needs a name for a bucket that is not in the address."""


class ObjectClients:
    """The clients of one bucket; `bucket` None: of all buckets at an endpoint, whose names then
    begin the keys.

    Each is opened at its first use, which takes 4 ms of CPU and 0.1 MB: obstore reads the system's
    certificates for it. An operator has a thousand buckets.
    """

    def __init__(self, access: Access, bucket: str | None) -> None:
        """Open nothing yet. Raises: TlsRefused."""
        self._access, self._bucket = access, bucket
        if access.ca_file is not None:
            authorities(access.ca_file)

    @cached_property
    def reading(self) -> S3Store:
        return self._opened({"read_timeout": SILENCE})

    @cached_property
    def writing(self) -> S3Store:
        return self._opened({})

    @cached_property
    def deleting(self) -> S3Store:
        """Else obstore sends DeleteObjects for a single deletion too, which some stores lack, and
        which goes to the address of a bucket."""
        return self._opened({"read_timeout": SILENCE}, disable_bulk_delete=True)

    def _opened(
        self, timeouts: Mapping[str, object], *, disable_bulk_delete: bool = False
    ) -> S3Store:
        access = self._access
        options: dict[str, object] = {
            "connect_timeout": timedelta(seconds=3),
            "timeout": TRANSFER,
            **timeouts,
            "allow_http": (access.endpoint or "").startswith("http://"),
        }
        if access.ca_file is not None:
            options["root_certificate"] = authorities(access.ca_file)
        return S3Store(
            self._bucket or ANY,
            region=access.region,
            client_options=options,  # type: ignore[arg-type]
            retry_config={"max_retries": 1, "retry_timeout": 2 * SILENCE},
            # obstore takes an endpoint for the address of the bucket, and adds keys alone.
            virtual_hosted_style_request=access.endpoint is None or self._bucket is None,
            disable_bulk_delete=disable_bulk_delete,
            **access.identity,  # type: ignore[arg-type]
        )
