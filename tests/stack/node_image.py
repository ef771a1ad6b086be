"""A node image of kind without a registry: kind's own `build node-image`, fed from the cache.

kind takes a base image and an archive of a Kubernetes release. Both are made here: the base from
Debian's packages and kind's own files, the release's images all from two programs, Kubernetes' and
`node` (kubeadm, CoreDNS, crictl). A stand-in for kindnetd serves clusters of one node.
"""

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from stack import cache, folders, golang, kube, packages, pulling
from stack.cache import Entry
from stack.errors import StepFailed
from stack.progress import Progress

KIND = ("sigs.k8s.io/kind", "v0.30.0")
"""The last of kind whose default is the Kubernetes that serves cgroup v1."""

STORAGE = ("github.com/rancher/local-path-provisioner", "v0.0.30")
SOURCE = folders.SOURCES / "node"
BASE = "postroad.local/kind-base:1"
TARGETS = ("kubernetes", "coredns", "kindnetd", "storage", "pause")
ARCHIVES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
"""The archives of images that kind looks for in a release."""

INDEXES = ("repositories", "manifest.json")
"""kind takes the names in an archive from the index that comes first; only `repositories` has all
names of an image."""


def kind() -> Entry:
    """Return the cache entry of kind."""
    return golang.installed("kind", *("sigs.k8s.io/kind", KIND[1]), "1 minute of CPU, once")


def node() -> Entry:
    """Return the cache entry of what a node needs beside Kubernetes' program."""

    def make(folder: Path, log: Path) -> None:
        command = [
            "build",
            "-trimpath",
            "-o",
            str(folder / "node"),
            f"-ldflags={kube.stamp()}",
            ".",
        ]
        golang.build("node", command, folder, log, directory=SOURCE)
        (folder / "kubeadm").symlink_to("node")

    key = cache.key_of(SOURCE, golang.go_version())
    return Entry("node", key, "kind: build kubeadm and CoreDNS (7 minutes of CPU, once)", make)


def storage() -> Entry:
    """Return the cache entry of the program behind kind's volumes."""
    return golang.installed("local-path-provisioner", *STORAGE, "1 minute of CPU, once")


def files() -> Entry:
    """Return the cache entry of kind's own files: `base` and the names in `images`."""

    def convert(module: Path, folder: Path) -> None:
        shutil.copytree(module / "images/base/files", folder / "base")
        texts = [path.read_text() for path in module.glob("pkg/build/nodeimage/const_*.go")]
        names = re.findall(r"docker\.io/kindest/[a-z-]+:[a-z0-9-]+", "\n".join(texts))
        (folder / "images").write_text("\n".join(sorted(set(names))) + "\n")

    return golang.made_from("kind-files", *KIND, "1", convert)


def entries() -> tuple[Entry, ...]:
    """Return all that a node image is made of."""
    return (*golang.toolchain(), kube.program(), kind(), node(), storage(), files())


def make(image: str, progress: Progress) -> None:
    """Make the node image, under a name.

    Raises:
        StepFailed: kind or the engine failed; the log has the reason.
    """
    packages.ensure(["gcc", "libc6-dev"], progress)
    for entry in entries():
        entry.ensure(progress)
    pulling.ensure_base(progress)
    log = folders.log("node-image")
    with progress.step(f"make {image}"), tempfile.TemporaryDirectory(dir=_room()) as folder:
        _build_base(log)
        _build_components(log)
        release = _release(Path(folder))
        command = (
            *(kind().path / "kind", "build", "node-image", "--type", "file", release),
            *("--base-image", BASE, "--image", image),
        )
        with log.open("ab") as output:
            code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    if code:
        raise StepFailed(f"kind build node-image {image}", log)


def _room() -> Path:
    room = folders.cache_directory() / "tmp"
    room.mkdir(parents=True, exist_ok=True)
    return room


def _build_base(log: Path) -> None:
    programs = ((kube.program().path / "kube", "programs/kube"), (_node(), "programs/node"))
    with pulling.context("node", (files().path / "base", "files"), *programs) as context:
        pulling.build(BASE, context, log)


def _build_components(log: Path) -> None:
    with pulling.context(
        "components",
        (kube.program().path / "kube", "programs/kube"),
        (_node(), "programs/node"),
        (storage().path / "local-path-provisioner", "programs/local-path-provisioner"),
    ) as context:
        (context / "kindnetd").rename(context / "programs/kindnetd")
        cache.run(["gcc", "-static", "-Os", "-o", context / "pause", kube.PAUSE_SOURCE], log)
        for target in TARGETS:
            pulling.build(_component(target), context, log, "--target", target)


def _node() -> Path:
    return node().path / "node"


def _component(target: str) -> str:
    return f"postroad.local/{target}:1"


def named(required: list[str], more: list[str], pause: str) -> dict[str, str]:
    """Return the names under which a node asks for images, and the component behind each.

    >>> required = ["k8s.example/kube-proxy:v1", "k8s.example/coredns:v1", "k8s.example/pause:3.1"]
    >>> for pair in named(required, ["kindest/kindnetd:v2"], "k8s.example/pause:3").items():
    ...     print(*pair)
    k8s.example/kube-proxy:v1 kubernetes
    k8s.example/coredns:v1 coredns
    kindest/kindnetd:v2 kindnetd
    k8s.example/pause:3 pause
    """
    words = {"coredns": "coredns", "kindnetd": "kindnetd", "provisioner": "storage"}
    found = {}
    for name in (*required, *more):
        if "/pause:" not in name:
            target = next((words[word] for word in words if word in name), "kubernetes")
            found[name] = target
    return {**found, pause: "pause"}


def _release(folder: Path) -> Path:
    """Write the archive of a release that kind takes."""
    version = f"v{kube.kubernetes_version()}"
    asked: list[str | Path] = [
        node().path / "kubeadm",
        "config",
        "images",
        "list",
        "--kubernetes-version",
        version,
    ]
    required = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    settings = (files().path / "base/etc/containerd/config.toml").read_text()
    pause = re.findall(r'sandbox_image = "(.*)"', settings)[0]
    names = named(required, (files().path / "images").read_text().split(), pause)
    for name, target in names.items():
        subprocess.run(["docker", "tag", _component(target), name], check=True)
    programs = folder / "kubernetes/server/bin"
    programs.mkdir(parents=True)
    _save([name for name in names if name != pause], programs / f"{ARCHIVES[0]}.tar", folder)
    for archive in ARCHIVES[1:]:
        _save([pause], programs / f"{archive}.tar", folder)
    for program in ("kubelet", "kubectl"):
        text = f'#!/bin/sh\nexec /usr/local/bin/kube {program} "$@"\n'
        (programs / program).write_text(text)
    (programs / "kubeadm").write_text('#!/bin/sh\nexec /usr/local/lib/node/kubeadm "$@"\n')
    (folder / "kubernetes/version").write_text(f"{version}\n")
    release = folder / "release.tar.gz"
    with tarfile.open(release, "w:gz", compresslevel=1) as packed:
        packed.add(folder / "kubernetes", "kubernetes")
    return release


def _save(names: list[str], archive: Path, room: Path) -> None:
    saved = room / "saved"
    shutil.rmtree(saved, ignore_errors=True)
    saved.mkdir()
    with (
        subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as saving,
        tarfile.open(fileobj=saving.stdout, mode="r|") as content,
    ):
        content.extractall(saved, filter="tar")
    for index in INDEXES:
        # Docker leaves its own registry's name out; kind compares full names.
        text = (saved / index).read_text().replace('"kindest/', '"docker.io/kindest/')
        (saved / index).write_text(json.dumps(json.loads(text)))
    with tarfile.open(archive, "w") as out:
        others = sorted({each.name for each in saved.iterdir()} - set(INDEXES))
        for name in (*INDEXES, *others):
            out.add(saved / name, name)
