"""The CRDs of this source in an API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

from postroad.adapters.kubernetes.api_server import ApiServer
from postroad.ports.kubernetes import Kind
from support.kubectl import manifests

ROOT = Path(__file__).parents[2]
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")


async def install_crds(api: ApiServer) -> None:
    """Apply the CRDs and wait until the API server serves them."""
    for crd in manifests(ROOT / "crds"):
        await api.apply(CRD, crd)
    for crd in manifests(ROOT / "crds"):
        for _ in range(100):
            found = await api.get(CRD, None, crd["metadata"]["name"]) or {}
            conditions = found.get("status", {}).get("conditions") or []
            if any(
                (each["type"], each["status"]) == ("Established", "True") for each in conditions
            ):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"the CRD is not served: {found}")
