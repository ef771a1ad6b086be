"""The part of the spec of a MailQueue that names what workers do with a mail."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, model_validator

from postroad.controller.spec.parts import Model, PortInRange, holds
from postroad.controller.spec.tls import StoreTls
from postroad.delivery_settings.hops import Hop
from postroad.delivery_settings.patterns import Duration
from postroad.delivery_settings.secret_references import SecretReference
from postroad.domain.mail.envelope_documents import MAX_HANDED, MAX_HANDING
from postroad.settings.programs import HandedBytes

SECOND = timedelta(seconds=1)

HandingTime = Annotated[
    Duration,
    holds(lambda each: SECOND <= each <= MAX_HANDING, "timeout must be from 1s to 10m"),
]
WebhookText = Annotated[
    str, Field(max_length=512, pattern=r"^https?://[^@\s#/?]+[^@\s#]*$"), PortInRange
]


class WebhookSpec(Model):
    """Posts every mail to a webhook: multipart/form-data with the parts `envelope` and `message`,
    signed as Standard Webhooks has it."""

    url: WebhookText
    """URL that gets the requests, without a login. A host without a dot is a Service in the
    MailQueue's namespace. With https, the certificate is verified."""

    secret_ref: SecretReference
    """Secret with `secret`, in the same namespace: 1 to 4 secrets, one a line, that sign each
    request. A renewed one is used once the kubelet has written it into the pod, within about a
    minute; no pod restarts."""

    tls: StoreTls | None = None
    """TLS to the webhook (`https`), whose certificate and name are always checked. Absent: the
    system's authorities."""

    timeout: HandingTime = timedelta(seconds=60)
    """For one mail, from the connection to the answer."""

    largest_bytes: HandedBytes = MAX_HANDED
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

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class ByRoutes(Model):
    """Delivery to the servers that the MX records of each recipient's domain name."""


class Handler(Model):
    """Handler of mails: one of these."""

    relay: Hop | None = None
    """Hand every mail to one SMTP or LMTP server."""

    mx: ByRoutes | None = None
    """Deliver to the servers that the MX records of each recipient's domain name, or as the rules
    of spec.delivery.routing have it. Set `hostname`, since many servers refuse a client without a
    name. Port 25 must be open towards the Internet."""

    webhook: WebhookSpec | None = None
    """Post every mail to a webhook."""

    function: FunctionSpec | None = None
    """Call a function in Python for every mail."""

    @model_validator(mode="after")
    def _is_one(self) -> Handler:
        fields = type(self).model_fields
        if sum(getattr(self, name) is not None for name in fields) != 1:
            raise ValueError(f"name one handler: {' or '.join(fields)}")
        return self
