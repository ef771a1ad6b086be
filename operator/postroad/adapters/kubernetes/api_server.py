"""The operations of the Kubernetes port, as requests to the API server."""

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from postroad.adapters.kubernetes.api_requests import MAX_PAGES, ApiAccess, ApiRequests
from postroad.errors import KubernetesUnavailable
from postroad.http_responses import ResponseTooLarge
from postroad.ports.kubernetes import Kind, Object, WatchEvent
from postroad.ports.servers import Guard

MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"

PAGES = (500, 10)
"""Objects of one answer to a list, and where they are too large for that."""

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
        return await self._object("GET", _path(kind, namespace, name), missing_ok=True)

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        type_meta = {"apiVersion": kind.api_version, "kind": kind.name}  # absent in lists
        return [{**type_meta, **each} for each in await self._items(kind, namespace, labels)]

    async def uids(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Collection[str]:
        items = await self._items(kind, namespace, labels, accept=METADATA)
        return {each["metadata"]["uid"] for each in items}

    def watch(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        from postroad.adapters.kubernetes import kopf_watch  # Kopf is the operator's alone

        return kopf_watch.watch(self.access.address, self.open_session, kind, namespace, labels)

    async def serves(self, *kinds: Kind) -> bool:
        for kind in kinds:
            found = await self.call("GET", kind.prefix, missing_ok=True)
            with _answers_only(kind.prefix):
                resources = () if found is None else found["resources"]
                served = {each["name"] for each in resources}
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
        path = _path(ACCESS_REVIEW, None)
        answer = await self.call("POST", path, body=asked)
        assert answer is not None
        with _answers_only(path):
            return bool(answer["status"]["allowed"])

    async def apply(self, kind: Kind, wanted: Object, *, force: bool = True) -> Object:
        metadata = wanted["metadata"]
        applied = await self._object(
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
        created = await self._object("POST", path, query=self._manager, body=wanted)
        assert created is not None
        return created

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        return await self._object(
            "PATCH",
            _path(kind, namespace, name),
            query=self._manager,
            body=change,
            content_type=MERGE,
            missing_ok=True,
        )

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        metadata = changed["metadata"]
        return await self._object(
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

    async def _object(self, method: str, path: str, **options: Any) -> Object | None:
        """Make a request whose answer is an object. Raises: KubernetesError."""
        answer = await self.call(method, path, **options)
        with _answers_only(path):
            return None if answer is None else _checked(answer)

    async def _items(
        self, kind: Kind, namespace: str | None, labels: str, **options: Any
    ) -> Sequence[Object]:
        """Return the objects of a list. Raises: KubernetesError."""
        path, query = _path(kind, namespace), {"labelSelector": labels} if labels else {}
        for most in PAGES:
            try:
                return await self._pages(path, {**query, "limit": str(most)}, **options)
            except KubernetesUnavailable as error:
                if most == PAGES[-1] or not isinstance(error.__cause__, ResponseTooLarge):
                    raise
        raise AssertionError("the last size returns or raises")

    async def _pages(self, path: str, query: Mapping[str, str], **options: Any) -> Sequence[Object]:
        found: Sequence[Object] = ()
        later: Mapping[str, str] = {}
        for _ in range(MAX_PAGES):
            answer = await self.call("GET", path, query={**query, **later}, **options)
            assert answer is not None
            with _answers_only(path):
                if not str(answer["kind"]).endswith("List"):
                    raise TypeError("not a list")
                items = answer["items"]  # null, where a list of metadata has none
                found = [*found, *(() if items is None else map(_checked, items))]
                more = (answer.get("metadata") or {}).get("continue")
            if not more:
                return found
            later = {"continue": more}
        raise KubernetesUnavailable(f"{path}: the list has more than {MAX_PAGES} pages")


@contextmanager
def _answers_only(path: str) -> Iterator[None]:
    """Turn what fails about the JSON of a load balancer, for example, into an error with a name."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        text = f"{path}: the answer is none of a Kubernetes API server"
        raise KubernetesUnavailable(text) from error


def _checked(answer: Object) -> Object:
    """Return an object that has what all have. Raises: KeyError, TypeError."""
    metadata = answer["metadata"]
    if not all(isinstance(metadata[each], str) for each in ("name", "uid", "resourceVersion")):
        raise TypeError("not an object's metadata")
    return answer


def _path(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    scope = f"/namespaces/{quote(namespace)}" if namespace is not None else ""
    return f"{kind.prefix}{scope}/{kind.plural}" + (f"/{quote(name)}" if name is not None else "")
