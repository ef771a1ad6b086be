"""Kubernetes API server, as the operator needs it. Objects are plain JSON mappings.

Source: Kubernetes documentation (API Concepts; Server-Side Apply)."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Object = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind, and the path under which the API server serves it."""

    api_version: str
    name: str
    plural: str

    @property
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version of the API group."""
        return self.api_version.rpartition("/")[2]

    @property
    def prefix(self) -> str:
        """The path that the API group is served under."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"


LISTED, COMPLETE, DELETED = "LISTED", "COMPLETE", "DELETED"


class WatchEvent(NamedTuple):
    """Event of a watch: its kind (ADDED, MODIFIED, DELETED; LISTED of what was there when the watch
    began), and the object as it was then; COMPLETE with no object after the last LISTED."""

    happened: str
    object: Object


class Kubernetes(Protocol):
    """An API server, as one field manager with one user's rights. Every method may raise
    KubernetesUnavailable, after which it is unknown whether a write had its effect, and
    KubernetesRefused. A result is a copy: changing it changes nothing on the server."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """Return an object, or None when there is none. No namespace: of the whole cluster."""

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Sequence[Object]:
        """Return the objects of a kind, in one namespace or in all. `labels` are equalities joined
        by commas."""

    async def uids(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> Collection[str]:
        """Return the uids of the objects that `list` returns, without what else they have."""

    def watch(
        self, kind: Kind, namespace: str | None = None, labels: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the objects that `list` returns, then what happens to them, without end. After an
        interruption that is too long to be made up for, all are listed again; deletions in it are
        brought by none. Raises nothing: it waits for an API server that is away or refuses."""

    async def serves(self, *kinds: Kind) -> bool:
        """Return whether all these kinds are installed."""

    async def may(
        self, verb: str, kind: Kind, namespace: str | None = None, *, subresource: str = ""
    ) -> bool:
        """Return whether the API server allows this user a verb, in one namespace or in all."""

    async def apply(self, kind: Kind, wanted: Object, *, force: bool = True) -> Object:
        """Apply an object server-side, and return it as it is then. Idempotent. Other managers'
        fields stay as they are. Fields that this manager applied before and `wanted` lacks are
        removed, unless another manager applied them too. A field that another manager gave another
        value gets this one, and belongs to this manager alone. Raises: KubernetesConflict for such
        a field without `force`."""

    async def create(self, kind: Kind, wanted: Object) -> Object:
        """Create an object. Raises: KubernetesConflict when its name is taken."""

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Mapping[str, Any]
    ) -> Object | None:
        """Merge a change (RFC 7386); return None when the object is gone. A status stays as it is.
        With `metadata.resourceVersion` in the change, raises KubernetesConflict for an object of
        another version."""

    async def replace_status(self, kind: Kind, changed: Object) -> Object | None:
        """Write the status, and nothing else, of an object; return None when the object is gone.
        Raises: KubernetesConflict when its resourceVersion is no longer that of `changed`, by
        Kubernetes 1.31 also when it is gone."""

    async def delete(self, kind: Kind, found: Object) -> None:
        """Delete this object, and in the background its dependants. One with finalizers gets a
        deletion timestamp, and is gone when they are. A missing object is no error. Raises:
        KubernetesConflict when an object of another uid has its name."""
