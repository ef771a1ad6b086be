"""Members of quorum queues: which to add, and what a condition says where that cannot be done."""

from __future__ import annotations

from postroad.domain.queues.quorum_queues import QuorumQueue, members_to_add, too_few_members

NODES = ["rabbit@a", "rabbit@b", "rabbit@c"]


def queue(*members: str, name: str = "postroad.mail.outgoing.work") -> QuorumQueue:
    return QuorumQueue(name, members, members)


def test_queue_gets_as_many_members_as_copies_are_wanted() -> None:
    assert members_to_add(queue("rabbit@a"), NODES, 3) == ["rabbit@b", "rabbit@c"]
    assert members_to_add(queue("rabbit@a", "rabbit@c"), NODES, 3) == ["rabbit@b"]
    assert members_to_add(queue(*NODES), NODES, 3) == []


def test_queue_gets_no_second_member_without_a_third() -> None:
    assert members_to_add(queue("rabbit@a"), NODES[:2], 3) == []


def test_members_are_spread_over_more_nodes_than_copies() -> None:
    more = [*NODES, "rabbit@d", "rabbit@e"]
    chosen = {
        node
        for number in range(20)
        for node in members_to_add(queue("rabbit@a", name=f"postroad.mail.q{number}.work"), more, 3)
    }

    assert chosen == set(more) - {"rabbit@a"}


def test_condition_has_the_command_for_each_node_that_lacks_members() -> None:
    queues = [queue("rabbit@a"), queue(*NODES, name="postroad.mail.other.work")]

    [said] = too_few_members(queues, NODES, 3, "mail")

    assert "1 queue has fewer than 3 members (such as postroad.mail.outgoing.work)" in said
    for node in ("rabbit@b", "rabbit@c"):
        command = f"rabbitmq-queues grow {node} all --vhost-pattern '^mail$'"
        assert f"{command} --queue-pattern '^postroad\\.'" in said


def test_several_queues_are_one_condition() -> None:
    queues = [queue("rabbit@a"), queue("rabbit@b", name="postroad.mail.other.work")]

    assert "2 queues have fewer than 3 members" in too_few_members(queues, NODES, 3, "mail")[0]


def test_members_that_do_not_run_are_reported() -> None:
    away = QuorumQueue("postroad.mail.outgoing.work", tuple(NODES), ("rabbit@a",))

    [said] = too_few_members([away], [*NODES, "rabbit@d"], 3, "mail")

    assert "fewer than 3 members online" in said


def test_nothing_is_reported_of_what_is_well_of_other_queues_and_of_too_few_nodes() -> None:
    assert too_few_members([queue(*NODES)], NODES, 3, "mail") == ()
    assert too_few_members([queue("rabbit@a", name="of another program")], NODES, 3, "mail") == ()
    assert too_few_members([queue("rabbit@a")], NODES[:1], 3, "mail") == ()
