"""What a mail costs in calls on the disk, counted by strace around a whole MTA (SP-9, SP-10,
SP-15, SP-20, SP-22, LQ-28 to LQ-30).

A mail costs at most one sync of its spool file, which mails share that come to the owner meanwhile.
The syncs of the log are shared by all that wait for one: at most one a mail accepted and one a set
of recipients delivered, and fewer under load.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from support.disk_calls import trace

pytestmark = pytest.mark.needs("strace")
MAILS = 60


@dataclass(frozen=True)
class Run:
    """What happened in each phase, in order."""

    clients: int
    phases: dict[str, list[str]]
    front: str

    @property
    def is_shared(self) -> bool:
        """True if mails may share the sync of a spool file."""
        return self.clients > 1 and self.front == "owner"

    def count(self, phase: str) -> Counter[str]:
        return Counter(self.phases[phase])


@pytest.fixture(
    scope="module",
    params=[(1, "owner"), (16, "owner"), (1, "receiver"), (16, "receiver")],
    ids=lambda param: f"{param[0]} clients of the {param[1]}",
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    clients, front = request.param
    return Run(clients, trace(tmp_path_factory.mktemp("counted"), clients, MAILS, front), front)


def test_a_mail_costs_one_sync_of_its_file_and_at_most_two_of_the_log(
    run: Run,
) -> None:
    accept, deliver, both = (run.count(phase) for phase in ("accept", "deliver", "both"))

    assert accept["answer"] == both["answer"] == MAILS, "strace saw the answers"
    if run.is_shared:
        assert 0 < accept["sync spool"] < MAILS
        assert 0 < both["sync spool"] <= MAILS
    else:
        assert accept["sync spool"] == both["sync spool"] == MAILS
    assert deliver["sync spool"] == 0
    if run.clients == 1:
        assert accept["sync log"] == deliver["sync log"] == MAILS
        assert both["sync log"] <= 2 * MAILS
    else:
        assert 0 < accept["sync log"] < MAILS, "mails share a sync"
        assert 0 < deliver["sync log"] < MAILS
        assert 0 < both["sync log"] < 2 * MAILS


def test_no_directory_changes_once_the_store_is_warm(run: Run) -> None:
    for phase in ("accept", "deliver", "both", "away"):
        calls = {event.split()[0] for event in run.phases[phase]}
        assert not calls & {"create", "unlink", "rename", "mkdir"}, phase


def test_a_mail_deferred_by_the_state_of_its_next_hop_opens_and_reads_no_spool_file(
    run: Run,
) -> None:
    away = run.count("away")

    assert away["open spool"] == away["read spool"] == 0
    assert away["sync log"] == 0, "a retry waits for no sync"


def test_250_follows_both_syncs(run: Run) -> None:
    """P9: at each answer, there were as many syncs of spool files as answers, and one of the log
    after the last of them. With one client this is the order mail by mail."""
    answers = spool = 0
    is_logged = False
    for event in run.phases["accept"]:
        if event == "sync spool":
            spool, is_logged = spool + 1, is_logged and run.clients > 1
        elif event == "sync log":
            is_logged = True
        elif event == "answer":
            answers += 1
            assert spool >= (1 if run.is_shared else answers)
            assert is_logged

    assert answers == MAILS
