"""The configuration files of the parts of the native cluster, and the node's plan.

Paths are those inside the cluster's namespaces, where the server's folder is `node.HOME` and the
program `node.PROGRAM`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from stack import kube, node
from stack.configuration_files import fill, write

API_PORT = 6443
NODE = "node1"
PODS = "10.244.0.0/16"
DNS_ADDRESS = "10.96.0.10"

KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /{{name}}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDomain: cluster.local
clusterDNS: [{{dns}}]
resolvConf: {{home}}/resolv.conf
failSwapOn: false
imageGCHighThresholdPercent: 100
evictionHard:
  {nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%",
   imagefs.inodesFree: "0%", memory.available: 100Mi}
shutdownGracePeriod: 0s
syncFrequency: 10s
"""
"""With it, a full disk or a busy neighbour evicts no pods in tests."""

PROXY = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: {{node}}
clusterCIDR: {{pods}}
clientConnection: {kubeconfig: {{home}}/credentials/proxy.kubeconfig}
conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s, tcpEstablishedTimeout: 0s}
"""

CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{pause}}"
  disable_apparmor = true
  restrict_oom_score_adj = true  # for machines without CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{{home}}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

BRIDGE = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.244.0.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}

COREFILE = """\
.:53 {
  ready 127.0.0.1:8181
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig {{home}}/credentials/dns.kubeconfig
    pods insecure
  }
}
"""

ADDONS = """\
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: {{dns}}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kube-dns
  namespace: kube-system
  labels: {kubernetes.io/service-name: kube-dns}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
endpoints: [{addresses: ["{{address}}"], conditions: {ready: true}}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/host-path
"""
"""DNS runs as a process of the node; volumes are folders of the node."""


@dataclass(frozen=True)
class Network:
    """The private link between the host and the cluster's namespaces."""

    name: str
    """Of the link's end on the host, and of the cluster's control group."""
    host: str
    node: str

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self.node}:{API_PORT}"


def write_files(folder: Path, network: Network) -> None:
    """Write every part's configuration into the server's folder."""
    values = {
        "name": network.name,
        "address": network.node,
        "node": NODE,
        "pods": PODS,
        "dns": DNS_ADDRESS,
        "home": node.HOME,
        "pause": kube.PAUSE_IMAGE,
    }
    for name, template in (
        ("kubelet.yaml", KUBELET),
        ("proxy.yaml", PROXY),
        ("containerd.toml", CONTAINERD),
        ("Corefile", COREFILE),
        ("addons.yaml", ADDONS),
    ):
        write(folder / name, fill(template, values))
    write(folder / "cni" / "10-bridge.conflist", json.dumps(BRIDGE))
    write(folder / "resolv.conf", f"nameserver {network.node}\n", mode=0o644)


def plan(folder: Path, program: Path, network: Network) -> dict[str, object]:
    """Return the steps of the node, in order."""
    home, binary = str(node.HOME), str(node.PROGRAM)
    credentials = f"{home}/credentials"
    containers = ["ctr", "-n", "k8s.io"]

    def config(user: str) -> str:
        return f"--kubeconfig={credentials}/{user}.kubeconfig"

    def start(name: str, *command: str) -> dict[str, object]:
        return {"start": name, "command": list(command)}

    steps: list[dict[str, object]] = [
        start("containerd", "containerd", "-c", f"{home}/containerd.toml"),
        start("etcd", *kube.etcd(binary, f"{home}/etcd", 2379)),
        start("apiserver", *kube.api_server(binary, credentials, network.node, API_PORT, 2379)),
        {"until_ready": f"{network.node}:{API_PORT}"},
        start(
            *("controllers", *kube.controllers(binary, credentials)),
            *("--enable-hostpath-provisioner", "--allocate-node-cidrs", f"--cluster-cidr={PODS}"),
        ),
        start(
            *("scheduler", binary, "kube-scheduler", config("scheduler")),
            *("--bind-address=127.0.0.1", "--leader-elect=false"),
        ),
        {"until": [*containers, "version"]},
        # Before the kubelet, because it would look for the sandbox image in a registry.
        {"run": [*containers, "images", "import", f"{home}/pause.tar"]},
        start(
            *("kubelet", binary, "kubelet", f"--config={home}/kubelet.yaml", config("kubelet")),
            *(f"--hostname-override={NODE}", f"--node-ip={network.node}"),
        ),
        start("proxy", binary, "kube-proxy", f"--config={home}/proxy.yaml"),
        start("dns", binary, "coredns", "-conf", f"{home}/Corefile"),
    ]
    return {
        "folder": str(folder),
        "program": str(program),
        "network": {"host": network.host, "node": network.node, "pods": PODS},
        "steps": steps,
    }
