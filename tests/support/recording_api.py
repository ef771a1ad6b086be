"""An API server client that records the operator's calls, and can stop answering after some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from postroad.adapters.kubernetes.api_requests import ApiAccess
from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.controller.kubernetes.api import FIELD_MANAGER
from postroad.errors import KubernetesRefused, KubernetesUnavailable
from postroad.ports.kubernetes import Object


@dataclass(frozen=True)
class Call:
    """One request, and whether it was refused."""

    method: str
    path: str
    refusal: str = ""

    @property
    def is_write(self) -> bool:
        return is_write(self.method, self.path)


def is_write(method: str, path: str) -> bool:
    """Whether a request may change something: a question about rights is a POST."""
    return method != "GET" and "accessreviews" not in path


class RecordingApi(ApiServer):
    """Records every call; after `writes_left` writes no call reaches the server, as if the operator
    had been killed there."""

    def __init__(self, access: ApiAccess, writes_left: int | None = None) -> None:
        super().__init__(access, FIELD_MANAGER)
        self.calls: list[Call] = []
        self.writes_left = writes_left
        self.is_dead = False

    @property
    def writes(self) -> list[Call]:
        """All calls that may change something."""
        return [each for each in self.calls if each.is_write]

    async def _request(self, method: str, path: str, **options: Any) -> Object | None:
        if is_write(method, path) and self.writes_left is not None:
            if self.writes_left == 0:
                self.is_dead = True
            self.writes_left -= 1
        if self.is_dead:
            raise KubernetesUnavailable("killed")
        try:
            answer = await super()._request(method, path, **options)
        except KubernetesRefused as error:
            self.calls.append(Call(method, path, str(error)))
            raise
        self.calls.append(Call(method, path))
        return answer
