"""The settings of an intake, and of the `sendmail` command: where it puts mail, and what it makes
of local names."""

from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from postroad.domain.smtp.next_hops import HOSTNAME_PATTERN, parse_host_port
from postroad.errors import InvalidInput
from postroad.settings.documents import Duration, Mailbox, NetworkList, Section, checked, read_yaml


class BareLineEnds(Enum):
    """Policy for a CR without LF, or an LF without CR, in a mail."""

    REFUSE = "refuse"
    NORMALISE = "normalise"


class LongLines(Enum):
    """Policy for a mail that has a line of more than 998 octets."""

    REFUSE = "refuse"
    FOLD = "fold"


class Intake(Section):
    """The intake, and the limits of its clients."""

    file: Path | None = None
    """File of intake: listeners by role, users, rules, domains, filters. Absent: one listener, by
    the variables below."""

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """The address to listen on; `*`: all of both families."""

    port: Annotated[int, Field(ge=0, le=65535)] = 2525

    tls_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """The port on which clients begin with TLS (RFC 8314 3.3), beside `port`; the same number:
    instead of it. None: no such port."""

    relay_from: NetworkList | None = None
    """Networks whose clients may send, to any recipient. None: loopback, and only while `host` is
    a loopback address."""

    max_size_bytes: Annotated[int, Field(ge=65536)] = 50 * 2**20

    max_recipients: Annotated[int, Field(ge=100)] = 1000
    """Per mail. Source: RFC 5321 4.5.3.1.8."""

    max_sessions: Annotated[int, Field(ge=1)] = 500

    client_sessions: Annotated[int, Field(ge=1)] | None = None
    """Sessions of one client address; None: half of `max_sessions`."""

    client_connections_per_minute: Annotated[int, Field(ge=1)] | None = None

    client_mails_per_minute: Annotated[int, Field(ge=1)] | None = None

    least_bytes_per_second: Annotated[int, Field(ge=1)] = 500
    """Of a mail as a whole, after its first five minutes."""

    longest_session: Duration = timedelta(hours=1)
    """No mail begins in an older session."""

    bare_line_ends: BareLineEnds = BareLineEnds.REFUSE
    """Policy for a mail that has a CR without LF, an LF without CR, or a NUL."""

    normalise_from: NetworkList | None = None
    """Networks whose mail is normalised although `bare_line_ends` is `refuse`."""

    early_input_from: NetworkList | None = None
    """Networks whose clients may send more after EHLO, HELO and DATA before the reply."""

    long_lines: LongLines = LongLines.REFUSE
    """Policy for a mail that has a line of more than 998 octets. `fold`: it accepts the mail
    unchanged, and the worker folds the line where the mail is not signed."""

    tls_certificate: Path | None = None
    """PEM file of the certificate and its chain; with `tls_key`, STARTTLS is offered."""

    tls_key: Path | None = None


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
