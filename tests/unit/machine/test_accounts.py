"""What counts as lost, and what explains that a mail came twice."""

from machine.accounts import ItemProgress, judge


def ledger(**deliveries: list[int]) -> ItemProgress:
    return ItemProgress(acknowledged={"a", "b", "c"}, deliveries=dict(deliveries), begun=3)


def test_what_was_delivered_or_waits_is_not_lost() -> None:
    verdict = judge(ledger(a=[0], b=[1]), {"c"}, sessions=20)

    assert verdict.is_good
    assert str(verdict) == (
        "3 begun, 3 acknowledged, 2 delivered, 1 waiting; lost 0, delivered twice 0,"
        " delivered and waiting 0, unexplained 0"
    )


def test_an_acknowledged_mail_that_is_nowhere_is_lost() -> None:
    verdict = judge(ledger(a=[0], b=[1]), set(), sessions=20)

    assert verdict.lost == {"c"}
    assert not verdict.is_good


def test_a_mail_that_was_not_acknowledged_may_be_anywhere() -> None:
    assert judge(ledger(a=[0], b=[0], c=[0], d=[0]), {"e"}, sessions=20).is_good


def test_a_cut_between_two_deliveries_explains_them() -> None:
    verdict = judge(ledger(a=[0, 1], b=[1], c=[2]), set(), sessions=20)

    assert (verdict.twice, verdict.is_good) == (1, True)


def test_two_deliveries_without_a_cut_between_them_are_unexplained() -> None:
    verdict = judge(ledger(a=[1, 1], b=[1], c=[2]), set(), sessions=20)

    assert verdict.unexplained == ["a was delivered twice within round 1"]
    assert not verdict.is_good


def test_a_cut_explains_no_more_mails_than_there_are_sessions() -> None:
    verdict = judge(ledger(a=[0, 1], b=[0], c=[0]), {"b", "c"}, sessions=2)

    assert verdict.unexplained == [
        "the cut of round 0 left 3 transmissions unrecorded, of 2 sessions"
    ]
    assert verdict.delivered_and_waiting == 2
