"""The Secret with a MailQueue's user at RabbitMQ: what it tells, and its manifest."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import SecretStr

from postroad.controller.cluster.user_rotation import CurrentUser
from postroad.controller.kubernetes.api import ROTATE, SECRET, USER_SINCE
from postroad.controller.pods.children import QUEUE, owned_child
from postroad.controller.spec.queue_resource import Queue
from postroad.controller.status.conditions import timestamp
from postroad.domain.servers import QueueUser
from postroad.logins import LOGIN
from postroad.ports.kubernetes import Object


@dataclass(frozen=True, slots=True)
class UserSecret:
    """A user with its password."""

    current: CurrentUser
    password: SecretStr

    @classmethod
    def of(cls, found: Mapping[str, Any] | None, first: QueueUser) -> UserSecret | None:
        """Read the Secret of a queue; None where there is none, and where it does not have one of
        the queue's two users, with a password and an instant. `first`: one of them."""
        if found is None:
            return None
        data = found.get("data") or {}
        annotations = found["metadata"].get("annotations") or {}
        try:
            name, password = (_decoded(data.get(each)) for each in LOGIN)
            since = datetime.fromisoformat(annotations[USER_SINCE])
        except (KeyError, ValueError):
            return None
        user = QueueUser.parse(name)
        if user is None or user not in (first, first.other):
            return None
        if not password or since.tzinfo is None:
            return None
        current = CurrentUser(user, since, annotations.get(ROTATE, ""))
        return cls(current, SecretStr(password))

    def manifest(self, queue: Queue) -> Object:
        """Return the Secret, which the MailQueue owns."""
        login = (str(self.current.user), self.password.get_secret_value())
        data = {
            key: base64.b64encode(value.encode()).decode()
            for key, value in zip(LOGIN, login, strict=True)
        }
        _, wanted = owned_child(queue, SECRET, queue.login_secret, QUEUE, {"data": data})
        annotations = {USER_SINCE: timestamp(self.current.since), ROTATE: self.current.rotated}
        return {**wanted, "metadata": {**wanted["metadata"], "annotations": annotations}}


def _decoded(value: str | None) -> str:
    """Return a text of a Secret. Raises: ValueError."""
    try:
        return base64.b64decode(value or "", validate=True).decode()
    except binascii.Error as error:
        raise ValueError("not base64") from error
