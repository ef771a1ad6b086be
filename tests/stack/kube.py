"""Kubernetes' own pieces: the program that is all its components, and the users of its API server.

The versions of Kubernetes, etcd and CoreDNS are those of `kube/go.mod`. Kubernetes stays at 1.34
while machines with cgroup v1 have to be served, because the kubelet refuses them from 1.35 on.
"""

import http.client
import json
import re
import secrets
import ssl
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from stack import archives, cache, folders, golang, patience
from stack.cache import Entry
from stack.configuration_files import fill, write
from stack.records import Record

SOURCE = folders.SOURCES / "kube"
PAUSE_SOURCE = folders.SOURCES / "pause.c"
PAUSE_IMAGE = "postroad.local/pause:1"
COMPONENTS = ("kube-apiserver", "kube-controller-manager")
VERSION_PACKAGE = "k8s.io/component-base/version"
FRONT_PROXY = "front-proxy-client"
"""The API server's name when it passes requests of others on to an aggregated API."""

USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("dns", "system:masters"),
    "kubelet": ("system:node:node1", "system:nodes"),
}
"""The users of the API server: name and group. The controllers are masters, because with
credentials of their own they take seconds longer to start."""

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: stack, cluster: {server: "{{server}}", certificate-authority: "{{authority}}"}}]
users: [{name: "{{user}}", user: {token: "{{token}}"}}]
contexts: [{name: stack, context: {cluster: stack, user: "{{user}}"}}]
current-context: stack
"""


def program() -> Entry:
    """Return the cache entry of the program that holds every component."""

    def make(folder: Path, log: Path) -> None:
        golang.build(
            "kube",
            ["build", "-trimpath", "-o", str(folder / "kube"), f"-ldflags={stamp()}", "."],
            folder,
            log,
            directory=SOURCE,
        )
        (folder / "kubectl").symlink_to("kube")

    key = cache.key_of(SOURCE, golang.go_version())
    return Entry("kube", key, "kubernetes: build (8 to 9 minutes of CPU, once)", make)


def components(version: str) -> Entry:
    """Return the cache entry of API server and controller manager of another release, built in the
    folder of Kubernetes' own module."""
    name = f"kubernetes-{version}"

    def make(folder: Path, log: Path) -> None:
        module = golang.downloaded(name, f"k8s.io/kubernetes@v{version}", folder, log)
        for file in (module / "go.mod", module / "go.sum"):
            file.chmod(0o644)
        required = requiring_published((module / "go.mod").read_text(), version)
        (module / "go.mod").write_text(required)
        # -mod=mod: those are verified by Go's checksum database, and added to go.sum.
        command = ["build", "-trimpath", "-mod=mod", f"-ldflags={stamp(version)}", "-o", folder]
        packages = [f"./cmd/{component}" for component in COMPONENTS]
        golang.build(name, [*map(str, command), *packages], folder, log, directory=module)

    key = cache.key_of(version, *COMPONENTS, golang.go_version())
    return Entry(name, key, f"{name}: build (5 to 8 minutes of CPU, once)", make)


def requiring_published(requirements: str, version: str) -> str:
    """Return Kubernetes' go.mod with the modules of its own repository as they are published: it
    replaces them by folders, which a published module lacks."""
    own = re.sub(r"^\s*k8s\.io/\S+ => \./staging/.*\n", "", requirements, flags=re.MULTILINE)
    published = f"v0.{version.removeprefix('1.')}"
    return re.sub(r"(k8s\.io/\S+) v0\.0\.0$", rf"\1 {published}", own, flags=re.MULTILINE)


def stamp(version: str | None = None) -> str:
    """Return the linker's flags that write a version of Kubernetes into a program; go.mod's by
    default."""
    version = version or kubernetes_version()
    facts = {
        "gitVersion": f"v{version}",
        "gitMajor": version.split(".")[0],
        "gitMinor": version.split(".")[1],
        "gitTreeState": "clean",
    }
    written = " ".join(f"-X {VERSION_PACKAGE}.{key}={value}" for key, value in facts.items())
    return f"-s -w {written}"


def kubernetes_version() -> str:
    """Return the version of Kubernetes that go.mod pins, without the v."""
    found = re.search(r"k8s\.io/kubernetes v([\d.]+)", (SOURCE / "go.mod").read_text())
    assert found, "go.mod requires k8s.io/kubernetes"
    return found[1]


def pause_image() -> Entry:
    """Return the cache entry of the sandbox container's image, `pause.tar`."""

    def make(folder: Path, log: Path) -> None:
        root = folder / "root"
        root.mkdir()
        cache.run(["gcc", "-static", "-Os", "-o", root / "pause", PAUSE_SOURCE], log)
        archives.write_archive(folder / "pause.tar", PAUSE_IMAGE, root, ["/pause"])
        cache.remove_tree(root)

    return Entry("pause", cache.key_of(PAUSE_SOURCE, PAUSE_IMAGE), "kubernetes: pause image", make)


def new_secrets() -> dict[str, str]:
    """Return a token for each user."""
    return {user: secrets.token_hex(16) for user in USERS}


def write_credentials(
    folder: Path, record: Record, server: str, *, seen_as: Path | None = None
) -> None:
    """Write tokens, kubeconfigs, the service accounts' key and the front proxy's certificate into a
    folder. `seen_as` is the path of the folder for the readers of the kubeconfigs, if it
    differs."""
    folder.mkdir(exist_ok=True, mode=0o700)
    lines = [
        f'{record.secrets[user]},{name},{user},"{group}"' if group else
        f"{record.secrets[user]},{name},{user}"
        for user, (name, group) in USERS.items()
    ]  # fmt: skip
    write(folder / "tokens.csv", "\n".join(lines) + "\n")
    for user in USERS:
        authority = (seen_as or folder) / "apiserver.crt"
        write(folder / f"{user}.kubeconfig", kubeconfig(record, user, server, authority))
    key = folder / "service-accounts.key"
    if not key.exists():
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    certificate = folder / f"{FRONT_PROXY}.crt"
    if not certificate.exists():
        # It vouches for itself: an authority beside it would sign nothing else.
        proxy_key = folder / f"{FRONT_PROXY}.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "3650", "-subj", f"/CN={FRONT_PROXY}"),
            *("-keyout", proxy_key, "-out", certificate),
        )
        certificate.chmod(0o600)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def kubeconfig(record: Record, user: str, server: str, authority: Path) -> str:
    """Return a kubeconfig for one user."""
    values = {
        "server": server,
        "authority": str(authority),
        "user": user,
        "token": record.secrets[user],
    }
    return fill(KUBECONFIG, values)


def etcd(kube: str, data: str, client_port: int) -> list[str]:
    """Return the command of etcd. It does not sync, because this stack need not survive a crash of
    the machine."""
    client = f"http://127.0.0.1:{client_port}"
    return [
        *(kube, "etcd", "--data-dir", data, "--unsafe-no-fsync", "--log-level=warn"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", "http://127.0.0.1:0"),
    ]


def api_server(kube: str, credentials: str, address: str, port: int, etcd_port: int) -> list[str]:
    """Return the command of the API server."""
    key, proxy = f"{credentials}/service-accounts.key", f"{credentials}/{FRONT_PROXY}"
    return [
        *(kube, "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd_port}"),
        *(f"--cert-dir={credentials}", f"--bind-address={address}", f"--secure-port={port}"),
        *(f"--advertise-address={address}", "--service-cluster-ip-range=10.96.0.0/16"),
        *("--authorization-mode=Node,RBAC", f"--token-auth-file={credentials}/tokens.csv"),
        *("--allow-privileged", "--service-account-issuer=https://kubernetes.default.svc"),
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        "--kubelet-preferred-address-types=InternalIP",
        *(f"--proxy-client-cert-file={proxy}.crt", f"--proxy-client-key-file={proxy}.key"),
        f"--requestheader-client-ca-file={proxy}.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


def controllers(kube: str, credentials: str) -> list[str]:
    """Return the command of the controller manager."""
    return [
        *(kube, "kube-controller-manager", f"--kubeconfig={credentials}/controllers.kubeconfig"),
        *("--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false"),
        f"--service-account-private-key-file={credentials}/service-accounts.key",
        f"--root-ca-file={credentials}/apiserver.crt",
    ]


class Api:
    """A few plain requests to an API server."""

    def __init__(self, address: tuple[str, int], authority: Path, token: str) -> None:
        """Take address, certificate and token; send nothing yet."""
        context = ssl.create_default_context(cafile=str(authority))
        # The server's own certificate lacks fields that newer Pythons require.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._connection = http.client.HTTPSConnection(
            *address, context=context, timeout=patience.stretched(3)
        )
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and content of a path."""
        self._connection.request("GET", path, headers=self._headers)
        with self._connection.getresponse() as response:
            return response.status, response.read()

    def is_ready(self) -> bool:
        """Return whether the API server is ready."""
        return self.get("/readyz")[0] == 200

    def serves(self) -> bool:
        """Return whether it is ready, and namespaces get what pods need."""
        accounts = "/api/v1/namespaces/default/serviceaccounts/default"
        return self.is_ready() and self.get(accounts)[0] == 200

    def node_is_ready(self, name: str) -> bool:
        """Return whether a node takes pods."""
        status, content = self.get(f"/api/v1/nodes/{name}")
        if status != 200:
            return False
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in json.loads(content)["status"].get("conditions", ())
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def asked(
    address: tuple[str, int], authority: Path, token: str, question: Callable[[Api], bool]
) -> bool:
    """Return the answer to a question; False when the API server cannot be reached, or its reply
    cannot be read."""
    try:
        api = Api(address, authority, token)
        try:
            return question(api)
        finally:
            api.close()
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False


class Kubectl:
    """Kubernetes' own command line, bound to one cluster."""

    def __init__(self, configuration: Path, program: Path | None = None) -> None:
        """Take the kubeconfig, and another kubectl than our own if there is one."""
        self.configuration = configuration
        self._program = program

    def command(self, *arguments: str) -> list[str]:
        """Return the command line, for callers that run it themselves."""
        path = self._program or program().path / "kubectl"
        return [str(path), "--kubeconfig", str(self.configuration), *arguments]

    def __call__(
        self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120
    ) -> str:
        """Run it and return what it prints.

        Raises:
            subprocess.CalledProcessError: it failed; `stderr` says why.
        """
        return subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
            timeout=patience.stretched(timeout_seconds),
        ).stdout
