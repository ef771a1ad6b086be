"""The operator with a fault, which tests that kill operators have to find: it takes the finalizer
off a MailQueue before it deletes what the queue has.
"""

from __future__ import annotations

from postroad.cli import main
from postroad.controller.kubernetes.api import MAIL_QUEUE
from postroad.controller.mailqueue.deletion import Deletion
from postroad.controller.mailqueue.deletion_progress import DeletionProgress
from postroad.controller.mailqueue.plan import plan_of
from postroad.controller.spec.queue_resource import Queue
from postroad.ports.kubernetes import Object


async def delete_carelessly(self: Deletion, found: Object) -> None:
    """Stands in for `Deletion.proceed`."""
    await self._finalizers.remove(MAIL_QUEUE, found)
    queue = Queue.of(found)
    cluster = await self._clusters.for_deletion(queue)
    plan = plan_of(queue, cluster, {})
    await self._step(found, plan.place, DeletionProgress.of({}, self._clock.now()))


if __name__ == "__main__":
    Deletion.proceed = delete_carelessly  # type: ignore[method-assign]
    main()
