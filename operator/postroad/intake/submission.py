"""Rights of users who have logged in, by the rules of an administrator, and how much each has sent.
Pure: `now` is a clock in seconds."""

from collections.abc import Callable, Sequence

from postroad.domain.smtp.replies import Reply
from postroad.domain.values.networks import Networks
from postroad.domain.values.text import ascii_lower
from postroad.intake.clients import MINUTE, Rights, Submission, used
from postroad.intake.logins.results import LoggedInUser, LoginClient, LoginFailed
from postroad.intake_settings.senders import SenderRule
from postroad.routing.tables import SenderPatterns

TOO_MANY_OF_USER = Reply(450, ("4.7.1 too many mails from this user, come again",))
DAY = 24 * 60 * MINUTE

ANY_SENDER = SenderRule.model_validate({})
"""The rule for users without one."""

MIN_KEPT = 1000
"""Users in the table before it is searched for those that have their whole rates again."""


class UserRates:
    """Rates of users: how much each has sent."""

    def __init__(self) -> None:
        self._full_at: dict[str, tuple[float, float]] = {}
        """LoggedInUser → when it has its rates of a minute and of a day again."""

        self._search_at = MIN_KEPT

    def begins_mail(self, user: str, rule: SenderRule, now: float) -> Reply | None:
        """Count a mail. Return the reply that refuses it, or None."""
        if rule.per_minute is None and rule.per_day is None:
            return None
        minute, day = self._full_at.get(user, (0.0, 0.0))
        in_minute = used(minute, rule.per_minute, now)
        in_day = used(day, rule.per_day, now, DAY)
        if in_minute is None or in_day is None:
            return TOO_MANY_OF_USER
        self._full_at[user] = in_minute, in_day
        if len(self._full_at) > self._search_at:
            self._full_at = {
                each: full_at for each, full_at in self._full_at.items() if max(full_at) > now
            }
            self._search_at = max(MIN_KEPT, 2 * len(self._full_at))
        return None


class Permissions:
    """The rules, and what users have sent under them. `rates` outlive a change of the rules."""

    def __init__(
        self, rules: Sequence[SenderRule], rates: UserRates, now: Callable[[], float]
    ) -> None:
        self._rates, self._now = rates, now
        self._rules = [
            (
                rule,
                None if rule.senders is None else SenderPatterns.of(rule.senders),
                None if rule.from_ is None else Networks.of(rule.from_),
            )
            for rule in _by_precedence(rules)
        ]

    def of(self, user: LoggedInUser, client: LoginClient) -> Submission:
        """Return the rights of a user who has logged in. Raises: LoginFailed, where the user may
        not log in from its address."""
        found = (each for each in self._rules if _matches(each[0], user))
        rule, senders, networks = next(found, (ANY_SENDER, None, None))
        if networks is not None and client.address not in networks:
            raise LoginFailed
        return Submission(
            user.name,
            rule.tenant if rule.users and rule.tenant else user.tenant,
            senders,
            rule.max_size,
            rule.fix_up,
            lambda: self._rates.begins_mail(user.name, rule, self._now()),
        )


def with_login(rights: Rights, submission: Submission) -> Rights:
    """Return the rights of a client that has logged in."""
    return Rights(
        may_relay=True,
        may_talk_early=rights.may_talk_early,
        normalises_line_ends=rights.normalises_line_ends,
        submission=submission,
    )


def _by_precedence(rules: Sequence[SenderRule]) -> list[SenderRule]:
    of_users = [each for each in rules if each.users]
    of_tenants = [each for each in rules if not each.users and each.tenant]
    return of_users + of_tenants + [each for each in rules if not each.users and not each.tenant]


def _matches(rule: SenderRule, user: LoggedInUser) -> bool:
    if rule.users is None:
        return rule.tenant in (None, user.tenant)
    name = ascii_lower(user.name)  # an issuer may have a user whose name looks like another's
    return any(
        name.endswith(ascii_lower(each[1:])) if each.startswith("*") else name == ascii_lower(each)
        for each in rule.users
    )
