"""The file of the `sendmail` command: where it puts mail, and what it makes of local names."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN, parse_host_port
from postroad.errors import InvalidInput
from postroad.settings.documents import checked, read_yaml
from postroad.settings.values import Mailbox, Section

SENDMAIL_FILE = Path("/etc/postroad/sendmail.yaml")

SMTP_PORT = 25


def _server(text: str) -> str:
    try:
        parse_host_port(text, SMTP_PORT)
    except InvalidInput as error:
        raise ValueError(str(error)) from error
    return text


class Sendmail(Section):
    """Settings of `sendmail` and `mailq`."""

    model_config = ConfigDict(**(Section.model_config | {"populate_by_name": True}))

    queue: str | None = None
    """The URL of the queue; its users are the user of its directory, and root."""

    server: Annotated[str, AfterValidator(_server)] | None = None
    """The server that takes the mail by SMTP, without TLS and login; None: it goes into the queue
    itself."""

    domain: Annotated[str, Field(pattern=HOSTNAME_PATTERN)] | None = None
    """The domain of names without one, of senders and of recipients; None: senders have the name
    of this machine, and recipients need `local_to`."""

    local_to: Annotated[Mailbox | None, Field(alias="localTo")] = None
    """The mailbox that gets the mail to names without a domain, such as root."""


def read_sendmail(file: Path) -> Sendmail:
    """Return the settings of a file. Raises: InvalidSettings."""
    return checked(Sendmail, read_yaml(file.read_text, file), file)
