"""The `AccessReviews` port, as requests to the API server."""

from typing import Any

from postroad.adapters.kubernetes.api_requests import ApiRequests
from postroad.errors import KubernetesUnavailable
from postroad.ports.access_reviews import QUEUE_GROUP, ReviewedRight, ReviewedUser

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
RIGHTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class ApiAccessReviews:
    """Reviews by the API server that `requests` go to."""

    def __init__(self, requests: ApiRequests) -> None:
        self._requests = requests

    async def user_of(self, token: str, audience: str) -> ReviewedUser | None:
        # Tokens of an OpenID Connect issuer are for the API server, and have no audience of ours.
        return await self._bearer(token, [audience]) or await self._bearer(token, [])

    async def _bearer(self, token: str, audiences: list[str]) -> ReviewedUser | None:
        status = await self._review(TOKENS, "TokenReview", {"token": token, "audiences": audiences})
        if status.get("authenticated") is not True:
            return None
        if audiences and not set(audiences) & set(status.get("audiences") or ()):
            return None  # the server knows no audiences
        user = status.get("user") or {}
        if not user.get("username"):
            return None  # an authenticator that names no user
        return ReviewedUser(
            user["username"],
            user.get("uid", ""),
            tuple(user.get("groups") or ()),
            tuple((name, tuple(values)) for name, values in (user.get("extra") or {}).items()),
        )

    async def allows(self, user: ReviewedUser, right: ReviewedRight) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "group": QUEUE_GROUP,
            "verb": right.verb,
            "resource": resource,
            "subresource": subresource,
            "namespace": right.namespace,
            "name": right.name,
        }
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "resourceAttributes": attributes,
        }
        status = await self._review(RIGHTS, "SubjectAccessReview", spec)
        return status.get("allowed") is True and status.get("denied") is not True

    async def _review(self, path: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        group = path.removeprefix("/apis/").rpartition("/")[0]
        asked = {"apiVersion": group, "kind": kind, "spec": spec}
        answer = await self._requests.call("POST", path, body=asked)
        found = (answer or {}).get("status")
        if not isinstance(found, dict):
            raise KubernetesUnavailable(f"{path}: the answer is none of a Kubernetes API server")
        return found
