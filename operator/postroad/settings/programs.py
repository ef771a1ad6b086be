"""The settings of a program that gets a worker's mail."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from postroad.domain.mail.envelope_documents import MAX_HANDED, MAX_HANDING
from postroad.settings.values import Duration, Section

TimeoutSetting = Annotated[Duration, Field(ge=timedelta(seconds=1), le=MAX_HANDING)]
HandedBytes = Annotated[int, Field(ge=65536, le=MAX_HANDED)]


class WorkerWebhook(Section):
    """The webhook that gets a worker's mail."""

    url: SecretStr | None = None
    """None: mail goes elsewhere."""

    login_folder: Path | None = None
    """Folder with the file `secret`, read again for each mail: the secrets that sign requests, one
    a line."""

    ca_file: Path | None = None
    """Certificate authorities of the webhook, instead of those for every server."""

    timeout: TimeoutSetting = timedelta(seconds=60)
    """For one mail, from the connection to the answer."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""


class WorkerFunction(Section):
    """The function in Python that gets a worker's mail."""

    name: str | None = None
    """`module:function`. None: mail goes elsewhere."""

    timeout: TimeoutSetting = timedelta(seconds=60)
    """For one mail."""

    largest_bytes: HandedBytes = MAX_HANDED
    """A longer mail is refused for good."""
