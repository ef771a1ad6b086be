"""The part of the spec of a MailQueue about its intake."""

from typing import Annotated

from pydantic import Field

from postroad.controller.spec.parts import Model, NetworkText, Replicas
from postroad.delivery_settings.patterns import Port
from postroad.delivery_settings.secret_references import SecretReference
from postroad.domain.values.networks import Networks
from postroad.errors import InvalidInput


class IntakeTls(Model):
    """TLS with the clients of the intake, from version 1.2 on."""

    cert_ref: SecretReference
    """Secret with the certificate and its chain in `tls.crt` and the key in `tls.key` (type
    kubernetes.io/tls, as cert-manager writes it). New sessions use a renewed certificate once the
    kubelet has written it into the pod, within about a minute; no pod restarts."""

    port: Port | None = None
    """Port on which clients begin with TLS (RFC 8314: 465), beside the intake's own port, which
    offers STARTTLS. The same number: instead of it. Absent: none."""


class Intake(Model):
    """The Deployment and the Service `<name>-intake`, which accept mail by SMTP."""

    replicas: Replicas = 1
    """Number of intake pods."""

    port: Port = 2525
    """Port of the Service, and port that the pods listen on."""

    relay_from: Annotated[list[NetworkText], Field(min_length=1, max_length=64)] | None = None
    """Networks whose clients may send, to any recipient: 10.244.0.0/16 or 2001:db8::/32. Required,
    because no network is safe everywhere. It is compared with the address that a pod sees: that of
    a node where a load balancer or a node port hides the client's, a loopback address for `kubectl
    port-forward`."""

    tls: IntakeTls | None = None
    """TLS with the clients of the intake, from version 1.2 on. Absent: none."""

    @property
    def ports(self) -> dict[str, int]:
        """The ports to listen on, by their names in Kubernetes."""
        secured = None if self.tls is None else self.tls.port
        plain = {} if secured == self.port else {"smtp": self.port}
        return plain if secured is None else {**plain, "smtps": secured}

    @property
    def networks(self) -> Networks:
        """`relayFrom` as networks. Not checked with the spec, because a spec from before the field
        existed lacks it, and the operator still reconciles the rest.

        Raises: InvalidInput.
        """
        if self.relay_from is None:
            raise InvalidInput(
                "spec.intake.relayFrom is missing: list the networks whose clients may send; "
                "until then the queue's pods stay as they are"
            )
        try:
            return Networks.of(self.relay_from)
        except InvalidInput as error:
            raise InvalidInput(f"spec.intake.relayFrom: {error}") from error

    @property
    def is_open_relay(self) -> bool:
        """True if every client of the Internet may send."""
        try:
            return self.networks.hold_the_internet
        except InvalidInput:
            return False
