"""What every claim on an object of a server does. Source: ADR 0040."""

from __future__ import annotations

import asyncio

from postroad.domain.queues.ownership import Claim, Claimant
from postroad.ports.servers import ClaimRecord

QUEUE = "mail.outgoing"
FIRST = Claimant("one", "mail", "main", QUEUE)
SECOND = Claimant("two", "mail", "main", QUEUE)


async def claimed(record: ClaimRecord, claimant: Claimant) -> Claim:
    """Claim an object that exists."""
    found = await record.claim(claimant)
    assert found is not None
    return found


class ClaimContract:
    """Subclasses provide the fixture `record`, of an object that no claimant has yet. `TELLS` is
    whether it tells more of a claimant than its token."""

    TELLS = True

    def check(self, found: Claim, claimant: Claimant) -> None:
        """Assert that a claim names its claimant."""
        assert found.is_of(claimant)
        assert found.token == claimant.token
        assert found.claimant == claimant or not self.TELLS

    async def test_the_first_claimant_has_the_claim(self, record: ClaimRecord) -> None:
        self.check(await claimed(record, FIRST), FIRST)
        self.check(await claimed(record, FIRST), FIRST)

    async def test_the_second_gets_the_claim_of_the_first(self, record: ClaimRecord) -> None:
        await claimed(record, FIRST)

        found = await claimed(record, SECOND)

        self.check(found, FIRST)
        assert not found.is_of(SECOND)
        self.check(await claimed(record, FIRST), FIRST)

    async def test_of_several_claimants_at_once_one_wins_for_all(self, record: ClaimRecord) -> None:
        rivals = [Claimant(str(number), "mail", "main", QUEUE) for number in range(8)]

        found = await asyncio.gather(*(claimed(record, each) for each in rivals))

        assert len({each.token for each in found}) == 1
        assert sum(each.is_of(rival) for each, rival in zip(found, rivals, strict=True)) == 1

    async def test_a_claim_that_is_transferred_is_the_others(self, record: ClaimRecord) -> None:
        await claimed(record, FIRST)
        found = await claimed(record, SECOND)

        self.check(await record.transfer(found, SECOND), SECOND)
        self.check(await claimed(record, FIRST), SECOND)

    async def test_another_claim_than_was_found_is_not_transferred(
        self, record: ClaimRecord
    ) -> None:
        third = Claimant("three", "mail", "main", QUEUE)
        await claimed(record, FIRST)
        found = await claimed(record, SECOND)
        await record.transfer(found, third)

        self.check(await record.transfer(found, SECOND), third)

    async def test_a_claim_that_is_released_is_free(self, record: ClaimRecord) -> None:
        await claimed(record, FIRST)

        await record.release(FIRST)

        self.check(await claimed(record, SECOND), SECOND)

    async def test_a_release_leaves_the_claim_of_another(self, record: ClaimRecord) -> None:
        await claimed(record, FIRST)

        await record.release(SECOND)

        self.check(await claimed(record, SECOND), FIRST)


class CountedClaimContract(ClaimContract):
    """Of claims whose server keeps all that an object has had."""

    async def test_former_claimants_are_listed(self, record: ClaimRecord) -> None:
        first = await claimed(record, FIRST)
        second = await record.transfer(first, SECOND)

        assert not first.former
        assert second.former == {FIRST.token}
        await record.release(SECOND)
        assert (await claimed(record, FIRST)).former == {FIRST.token, SECOND.token}

    async def test_a_later_claim_of_the_same_has_another_id(self, record: ClaimRecord) -> None:
        first = await claimed(record, FIRST)
        second = await record.transfer(first, SECOND)
        again = await record.transfer(second, FIRST)

        assert len({first.id, second.id, again.id}) == 3
        assert await record.transfer(first, SECOND) == again
