"""The program that a worker hands its mail to, by its settings."""

from importlib import import_module

from postroad.adapters.machine.clocks import MachineClock
from postroad.adapters.programs.function import FunctionConnector, HandlerFunction
from postroad.domain.delivery.webhooks import WebhookAddress
from postroad.domain.mail.envelope_documents import MAX_HANDED
from postroad.errors import InvalidInput, InvalidSettings
from postroad.memory_budget import MemoryBudget
from postroad.ports.delivery import Connector
from postroad.settings import Settings

SCHEME = "python:"
"""May stand before the name of a function."""

ROOM = MAX_HANDED + 14 * 2**20
"""Octets of contents in memory: a pod has 512 MiB."""


def webhook_url_of(settings: Settings) -> WebhookAddress:
    """Return the webhook of the settings, which must have one. Raises: InvalidSettings."""
    section = settings.worker_webhook
    assert section.url is not None
    if section.login_folder is None:
        raise InvalidSettings(
            "the webhook has no secret that signs requests",
            hint="write one into the file `secret` of a folder, such as from `openssl rand -hex"
            " 32`, and name the folder with --webhook-login-folder",
        )
    try:
        return WebhookAddress(section.url.get_secret_value())
    except InvalidInput as error:
        raise InvalidSettings(str(error)) from error


def open_webhook(settings: Settings, url: WebhookAddress) -> Connector:
    """Return what opens connections to a webhook. Raises: InvalidSettings."""
    from postroad.adapters.programs.webhook import (  # aiohttp's client is not loaded for nothing
        Webhook,
        WebhookConnector,
    )

    section = settings.worker_webhook
    assert section.login_folder is not None
    webhook = Webhook(
        url,
        section.login_folder / "secret",
        section.ca_file or settings.ca_file,
        section.timeout,
        section.largest_bytes,
    )
    webhook.secrets()
    return WebhookConnector(webhook, MachineClock(), MemoryBudget(ROOM))


def open_function(settings: Settings, function: HandlerFunction) -> Connector:
    return FunctionConnector(function, MemoryBudget(ROOM), settings.worker.concurrency)


def function_of(settings: Settings) -> HandlerFunction:
    """Import the function of the settings, which must have one. Raises: InvalidSettings."""
    section = settings.worker_function
    assert section.name is not None
    name = section.name.removeprefix(SCHEME)
    module, _, path = name.partition(":")
    if not module or not path:
        raise InvalidSettings(f"{name!r} names no function", hint="write module:function")
    try:
        found: object = import_module(module)
    except Exception as error:  # whatever the module raises
        raise InvalidSettings(
            f"the module {module} cannot be imported: {type(error).__name__}: {error}",
            hint="install it beside postroad, or name its folder with PYTHONPATH",
        ) from error
    for each in path.split("."):
        found = getattr(found, each, None)
    if not callable(found):
        raise InvalidSettings(f"the module {module} has no function {path}")
    return HandlerFunction(name, found, section.timeout, section.largest_bytes)
