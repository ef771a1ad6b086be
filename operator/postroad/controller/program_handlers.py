"""The parts of the spec that name a program which gets the mail."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from postroad.controller.server_tls import AuthoritiesReference
from postroad.controller.spec_parts import (
    Duration,
    LocalReference,
    Model,
    PortInRange,
    holds,
)
from postroad.domain.handed_mails import LARGEST_HANDED, LONGEST_HANDING

SECOND = timedelta(seconds=1)

HandingTime = Annotated[
    Duration,
    holds(lambda each: SECOND <= each <= LONGEST_HANDING, "timeout must be from 1s to 10m"),
]
HandedBytes = Annotated[int, Field(ge=65536, le=LARGEST_HANDED)]
WebhookText = Annotated[
    str, Field(max_length=512, pattern=r"^https?://[^@\s#/?]+[^@\s#]*$"), PortInRange
]


class WebhookSpec(Model):
    """Posts every mail to a webhook: multipart/form-data with the parts `envelope` and `message`,
    signed as Standard Webhooks has it."""

    url: WebhookText
    """URL that gets the requests, without a login. A host without a dot is a Service in the
    MailQueue's namespace. With https, the certificate is verified."""

    secret_ref: LocalReference
    """Secret with `secret`, in the same namespace: 1 to 4 secrets, one a line, that sign each
    request. A renewed one is used once the kubelet has written it into the pod, within about a
    minute; no pod restarts."""

    ca_ref: AuthoritiesReference | None = None
    """The authorities that vouch for the webhook, in the same namespace. Absent: the system's."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail, from the connection to the answer."""

    largest_bytes: HandedBytes = LARGEST_HANDED
    """A longer mail is refused for good."""


class FunctionSpec(Model):
    """Calls a function in Python for every mail, in the worker's own process."""

    name: Annotated[
        str,
        Field(
            max_length=253,
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
            r":[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$",
        ),
    ]
    """module:function, which the image of the queue has (spec.image)."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail."""

    largest_bytes: HandedBytes = LARGEST_HANDED
    """A longer mail is refused for good."""
