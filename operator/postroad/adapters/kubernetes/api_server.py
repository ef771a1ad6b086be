"""The operations of the Kubernetes port, as requests to the API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from postroad.adapters.kubernetes.api_requests import ApiAccess, ApiRequests
from postroad.ports.kubernetes import Kind, Object, WatchEvent
from postroad.ports.servers import Guard

MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"

METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""Lists without spec and status."""

ACCESS_REVIEW = Kind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"
)


class ApiServer(ApiRequests):
    """The `Kubernetes` port over HTTP. `guard` is asked before each write leaves."""

    def __init__(self, access: ApiAccess, field_manager: str, guard: Guard | None = None) -> None:
        super().__init__(access, guard)
        self._manager = {"fieldManager": field_manager}

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        return await self.call("GET", _path(kind, namespace, name), missing_ok=True)

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        query = {"labelSelector": labels} if labels else {}
        found = await self.call("GET", _path(kind, namespace), query=query)
        type_meta = {"apiVersion": kind.api_version, "kind": kind.name}  # absent in lists
        assert found is not None
        return [{**type_meta, **each} for each in found["items"]]

    async def uids(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Collection[str]:
        query = {"labelSelector": labels} if labels else {}
        found = await self.call("GET", _path(kind, namespace), query=query, accept=METADATA)
        items = found["items"] if found else None  # null, where a list of metadata has none
        return {each["metadata"]["uid"] for each in items or ()}

    def watch(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        from postroad.adapters.kubernetes import kopf_watch  # Kopf is the operator's alone

        return kopf_watch.watch(self.access.address, self.open_session, kind, namespace, labels)

    async def serves(self, *kinds: Kind) -> bool:
        for kind in kinds:
            found = await self.call("GET", kind.prefix, missing_ok=True)
            served = {each["name"] for each in found["resources"]} if found else set()
            if kind.plural not in served:
                return False
        return True

    async def may(
        self, verb: str, kind: Kind, namespace: str | None = None, *, subresource: str = ""
    ) -> bool:
        attributes = {"verb": verb, "group": kind.group, "resource": kind.plural}
        if subresource:
            attributes["subresource"] = subresource
        if namespace is not None:
            attributes["namespace"] = namespace
        asked = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.call("POST", _path(ACCESS_REVIEW, None), body=asked)
        assert answer is not None
        return bool(answer["status"]["allowed"])

    async def apply(self, kind: Kind, wanted: Object, *, force: bool = True) -> Object:
        metadata = wanted["metadata"]
        applied = await self.call(
            "PATCH",
            _path(kind, metadata.get("namespace"), metadata["name"]),
            query={**self._manager, "force": "true" if force else "false"},
            body=wanted,
            content_type=APPLY,
        )
        assert applied is not None
        return applied

    async def create(self, kind: Kind, wanted: Object) -> Object:
        path = _path(kind, wanted["metadata"].get("namespace"))
        created = await self.call("POST", path, query=self._manager, body=wanted)
        assert created is not None
        return created

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        return await self.call(
            "PATCH",
            _path(kind, namespace, name),
            query=self._manager,
            body=change,
            content_type=MERGE,
            missing_ok=True,
        )

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        metadata = changed["metadata"]
        return await self.call(
            "PUT",
            f"{_path(kind, metadata['namespace'], metadata['name'])}/status",
            query=self._manager,
            body=changed,
            missing_ok=True,
        )

    async def delete(self, kind: Kind, found: Object) -> None:
        metadata = found["metadata"]
        await self.call(
            "DELETE",
            _path(kind, metadata.get("namespace"), metadata["name"]),
            body={
                "kind": "DeleteOptions",
                "apiVersion": "v1",
                "propagationPolicy": "Background",
                "preconditions": {"uid": metadata["uid"]},
            },
            missing_ok=True,
        )


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    scope = f"/namespaces/{quote(namespace)}" if namespace is not None else ""
    return f"{kind.prefix}{scope}/{kind.plural}" + (f"/{quote(name)}" if name is not None else "")
