"""A cluster of one node by kind, where a Docker engine answers.

Its node's image is pulled, or made where it cannot be (`node_image`). On Linux, pods reach our
loopback through the gateway of kind's network; elsewhere they do not.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from stack import contexts, folders, golang, images, kube, node_image, processes, pulling
from stack.cache import Entry
from stack.cluster import Cluster
from stack.docker import Container, run
from stack.errors import MissingRequirement
from stack.progress import Progress
from stack.records import Record

NODE_IMAGE_VARIABLE = "POSTROAD_STACK_KIND_IMAGE"
"""Names the image of kind's node."""

PROGRAMS: dict[str, Callable[[], Entry]] = {"kind": node_image.kind, "kubectl": kube.program}
"""What is built where PATH has none."""


class KindCluster(Container, Cluster):
    """A cluster of one node by kind."""

    image = "kindest/node:v1.34.0"
    inner_ports: ClassVar = {}

    @property
    def cluster(self) -> str:
        """The cluster's name, from which kind makes the container's."""
        return f"pr-{folders.fingerprint(self.directory)}"

    @property
    def container(self) -> str:
        """The node's container."""
        return f"{self.cluster}-control-plane"

    @property
    def kubectl(self) -> kube.Kubectl:
        """Run the kubectl in PATH, or our own where there is none."""
        found = shutil.which("kubectl")
        return kube.Kubectl(self.kubeconfig, Path(found) if found else None)

    @property
    def endpoint(self) -> str:
        """The cluster's name; its address is in the kubeconfig."""
        return f"kind {self.cluster}"

    @property
    def gateway(self) -> str:
        """The machine's address on kind's network."""
        text = run("docker", "network", "inspect", "kind", "--format", "{{json .IPAM.Config}}")
        return next(
            str(entry["Gateway"])
            for entry in json.loads(text)
            if "." in entry.get("Gateway", "")  # not the IPv6 one
        )

    @property
    def node_image(self) -> str:
        """The image of its node: the one that the user names, else the one that was found or made
        here."""
        named = os.environ.get(NODE_IMAGE_VARIABLE)
        made = f"kindest/node:v{kube.kubernetes_version()}"
        return named or (made if pulling.is_here(made) else self.image)

    def check_machine(self) -> None:
        """Refuse systems on which pods do not reach the machine's loopback."""
        if sys.platform != "linux":
            raise MissingRequirement(
                "pods of kind reach this machine's servers on Linux only; use a virtual machine"
                " with Debian 12"
            )

    def is_prepared(self) -> bool:
        """Return whether node image, kind and kubectl are there."""
        return pulling.is_here(self.node_image) and all(_is_found(each) for each in PROGRAMS)

    def prepare(self, progress: Progress) -> None:
        """Have kind, kubectl and the node image.

        Raises:
            MissingRequirement: a program is missing, and cannot be built here.
        """
        for program, entry in PROGRAMS.items():
            if shutil.which(program) is None:
                for made in (*golang.toolchain(), entry()):
                    made.ensure(progress)
        image = self.node_image
        make = functools.partial(node_image.make, f"kindest/node:v{kube.kubernetes_version()}")
        pulling.obtain(image, progress, make)

    def launch(self, record: Record) -> None:
        """Start the node that exists, or make a cluster."""
        if self._status():
            run("docker", "start", self.container)
            return
        self._kind(
            *("create", "cluster", "--name", self.cluster, "--image", self.node_image),
            *("--kubeconfig", self.kubeconfig, "--wait", "180s"),
        )

    def _kind(self, *arguments: str | Path) -> None:
        run(shutil.which("kind") or node_image.kind().path / "kind", *arguments)

    def answers(self) -> bool:
        """Ask for its nodes."""
        try:
            return " Ready " in self.kubectl("get", "nodes", timeout_seconds=5)
        except (OSError, subprocess.SubprocessError):
            return False

    def after_start(self, record: Record) -> None:
        """Let pods reach what is published."""
        processes.kill_members(self.directory)
        self.start_forwarder()

    def end(self) -> None:
        """Kill node and forwarder."""
        processes.kill_members(self.directory)
        super().end()

    def build_image(
        self,
        context: Path,
        name: str,
        progress: Progress,
        dockerfile: Path | None,
        target: str | None = None,
        more: Mapping[str, Path] | None = None,
    ) -> None:
        """Build an image and give it to the cluster. Where the base was made here, buildah builds
        it, because a build by Docker does not see the machine's certificates and pip settings."""
        pulling.obtain(images.BASE_NAME, progress, pulling.ensure_base)
        if pulling.was_made_here(images.BASE_NAME):
            self.load_image(images.build(context, name, progress, dockerfile, target, more))
            return
        file = dockerfile or context / "Dockerfile"
        chosen = contexts.options(target, more)
        run("docker", "build", "--tag", name, "--file", file, *chosen, context)
        self._kind("load", "docker-image", name, "--name", self.cluster)

    def load_image(self, archive: Path) -> None:
        """Give the cluster the images of an archive."""
        self._kind("load", "image-archive", archive, "--name", self.cluster)

    def remove(self) -> None:
        """Delete the cluster."""
        if self._status():
            self._kind("delete", "cluster", "--name", self.cluster)
        super().remove()


def _is_found(program: str) -> bool:
    return shutil.which(program) is not None or PROGRAMS[program]().path.is_dir()
