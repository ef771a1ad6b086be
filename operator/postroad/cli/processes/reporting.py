"""The reports of a process, from its settings."""

from postroad.adapters.machine.clocks import MachineClock
from postroad.bootstrap.delivery.transports import ehlo_name_of, hostname_of
from postroad.domain.delivery.retries import RetryPlan
from postroad.domain.reports.composing import ReportAuthor
from postroad.domain.reports.deciding import ReportLimit, ReportRules
from postroad.ports.mail_queue import MailQueue
from postroad.settings import Settings
from postroad.telemetry.logs import logger
from postroad.worker.reporting import Reporting

_log = logger("worker")


def reporting_of(settings: Settings, queue: MailQueue, plan: RetryPlan) -> Reporting | None:
    """Return what reports to the senders of a queue's mail; None where that is switched off."""
    section, host = settings.reports, hostname_of(settings)
    if not section.enabled:
        return None
    if section.author is None and ehlo_name_of(settings) is None:
        _log.warning(
            "reports are from a name that many servers refuse: set POSTROAD_HOSTNAME or"
            " POSTROAD_REPORTS_AUTHOR",
            hostname=host,
        )
    return Reporting(
        queue,
        ReportAuthor(host, section.author or f"MAILER-DAEMON@{host}"),
        plan,
        MachineClock(),
        rules=ReportRules(
            section.delay_after,
            section.delay_cleared,
            section.largest_returned_bytes,
            section.administrator,
        ),
        limit=ReportLimit(section.per_minute),
    )
