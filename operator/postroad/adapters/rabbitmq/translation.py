"""Translates the driver's errors and the broker's replies into postroad's errors."""

import re
import socket

from pika import exceptions
from pika.adapters.utils import connection_workflow as workflow

from postroad import errors
from postroad.tls import refusal

NOT_FOUND, PRECONDITION_FAILED, ACCESS_REFUSED, NOT_ALLOWED = 404, 406, 403, 530
"""Reply codes of AMQP 0-9-1."""


_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' for (?P<object>.+): "
    r"received (?P<wanted>.+) but current is (?P<found>none|'.*'|the value '.*' of type '.*')$"
)
_VALUE = re.compile(r"^(?:the value )?'(.*?)'(?: of type '.*')?$")


def translated(error: BaseException | None) -> errors.ServerError:
    """Return postroad's error for the driver's. An unexpected one counts as transient."""
    cause = _innermost(error)
    if isinstance(cause, errors.ServerError):
        return cause
    if isinstance(cause, (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError)):
        return errors.CredentialsRefused("RabbitMQ refused the user or the password")
    if isinstance(cause, exceptions.ProbableAccessDeniedError):
        return errors.BrokerRefused(f"RabbitMQ refused the vhost: {cause}")
    if isinstance(cause, exceptions.ConnectionClosedByBroker):
        return _of_connection(cause.reply_code, cause.reply_text)
    if isinstance(cause, exceptions.ChannelClosedByBroker):
        return _of_channel(cause.reply_code, cause.reply_text)
    if isinstance(cause, socket.gaierror):
        return errors.BrokerUnavailable(f"RabbitMQ's host is unknown: {cause.strerror}")
    if cause is None:
        return errors.BrokerUnavailable()
    if (refused := refusal("RabbitMQ", _text_of(cause))) is not None:
        return refused
    is_cut = isinstance(cause, exceptions.IncompatibleProtocolError)
    return errors.BrokerUnavailable(
        f"RabbitMQ cannot be reached: {_text_of(cause)}",
        # Not permanent: a proxy without a server behind it causes the same error.
        hint="where the port is one for TLS, write amqps://" if is_cut else None,
    )


def _of_connection(code: int, text: str) -> errors.ServerError:
    if code == ACCESS_REFUSED:
        return errors.CredentialsRefused(f"RabbitMQ refused the user: {text}")
    if code == NOT_ALLOWED:
        return errors.BrokerRefused(f"RabbitMQ refused the connection: {text}")
    return errors.BrokerUnavailable(f"RabbitMQ closed the connection: {text}")


def _of_channel(code: int, text: str) -> errors.ServerError:
    if code == NOT_FOUND:
        return errors.Unroutable(f"RabbitMQ has no such queue or exchange: {text}")
    if code == PRECONDITION_FAILED and "delivery acknowledgement" not in text:
        return errors.BrokerRefused(
            difference_in(text) or f"RabbitMQ refused: {text}",
            hint="it was declared otherwise: restore its value, or delete it when it is empty",
        )
    if code == ACCESS_REFUSED:
        return errors.BrokerRefused(
            f"RabbitMQ refused: {text}", hint="grant the user the vhost's permissions"
        )
    return errors.BrokerUnavailable(f"RabbitMQ closed the channel: {text}")


def difference_in(text: str) -> str | None:
    """Return what a refusal tells of an object that was declared otherwise: its argument, what was
    found, and what is wanted. None for other texts, and for one that RabbitMQ cut.

    >>> difference_in(
    ...     "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/':"
    ...     " received '20' but current is '5'"
    ... )
    "queue 'q' in vhost '/' has x-delivery-limit 5, wanted is 20"
    """
    found = _INEQUIVALENT.search(text)
    if found is None:
        return None
    wanted, present = (_VALUE.sub(r"\1", found[each]) for each in ("wanted", "found"))
    return f"{found['object']} has {found['argument']} {present}, wanted is {wanted}"


def _innermost(error: BaseException | None) -> BaseException | None:
    """Return the cause, which the driver wraps in up to three stages of connecting."""
    while True:
        if isinstance(error, workflow.AMQPConnectionWorkflowFailed) and error.exceptions:
            error = error.exceptions[-1]
        elif isinstance(error, workflow.AMQPConnectorPhaseErrorBase):
            error = error.exception
        elif (
            isinstance(error, exceptions.AMQPConnectionError)
            and len(error.args) == 1
            and isinstance(error.args[0], BaseException)
        ):
            error = error.args[0]
        else:
            return error


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
