"""The native Kubernetes: its pods, what they reach, and that nothing of it is left after `down`."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack import archives, control_groups, processes
from stack.kubernetes import Kubernetes
from stack.local import Stack
from stack.native import NativeServer
from stack.server import State

BUSYBOX = Path("/bin/busybox")
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: box, image: "box:1", imagePullPolicy: Never}]
"""


@pytest.fixture(scope="module")
def cluster(own_stack: Stack, prepared: Callable[[str], NativeServer]) -> Kubernetes:
    prepared("kubernetes")
    own_stack.up(["kubernetes"])
    made = own_stack.kubernetes
    assert isinstance(made, Kubernetes)
    return made


@pytest.fixture(scope="module")
def box(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that runs a shell line in a pod."""
    if not BUSYBOX.exists():
        pytest.skip("needs Debian's busybox-static")
    folder = tmp_path_factory.mktemp("box")
    programs = folder / "root" / "bin"
    programs.mkdir(parents=True)
    shutil.copy2(BUSYBOX, programs / "busybox")
    (programs / "sh").symlink_to("busybox")
    name = "docker.io/library/box:1"
    archives.write_archive(folder / "box.tar", name, folder / "root", ["/bin/sh", "-c", "read x"])
    cluster.load_image(folder / "box.tar")
    pod = POD.replace('"box:1"', '"box:1", command: [/bin/busybox, sleep, "100000"]')
    cluster.kubectl("apply", "-f", "-", stdin=pod)

    def run(line: str) -> str:
        cluster.kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=60s")
        return cluster.kubectl("exec", "box", "--", "/bin/sh", "-c", line)

    return run


@pytest.fixture
def greeting_port() -> Iterator[int]:
    """A server on our loopback that replies hello."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"hello\n")

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]


def test_the_node_is_ready_and_has_a_storage_class(cluster: Kubernetes) -> None:
    assert " Ready " in cluster.kubectl("get", "nodes")
    assert "standard (default)" in cluster.kubectl("get", "storageclasses")


def test_pods_find_services_by_name(box: Callable[[str], str]) -> None:
    answer = box("busybox nslookup kubernetes.default.svc.cluster.local")

    assert "10.96.0.1" in answer


def test_pods_reach_what_is_published_and_can_be_cut_off(
    cluster: Kubernetes, box: Callable[[str], str], greeting_port: int
) -> None:
    cluster.publish("default", "greeter", greeting_port, 2525)
    ask = "for i in 1 2 3 4 5 6 7 8 9; do busybox nc -w 2 greeter 2525 && exit; sleep 1; done"
    refused = "busybox nc -w 2 greeter 2525 || echo refused"

    reached = box(ask.replace("sleep", "busybox sleep"))
    cluster.cut([greeting_port])
    cut_off = box(refused)
    cluster.mend([greeting_port])

    assert reached == "hello\n"
    assert cut_off == "refused\n"
    assert box(refused) == "hello\n"


def test_a_second_up_is_quick_and_changes_nothing(
    cluster: Kubernetes, quickest_up: Callable[[str], float]
) -> None:
    before = cluster.pid

    assert quickest_up("kubernetes") < 1
    assert cluster.pid == before


def test_pods_come_back_after_a_kill(
    own_stack: Stack, cluster: Kubernetes, box: Callable[[str], str], greeting_port: int
) -> None:
    cluster.publish("default", "greeter", greeting_port, 2525)

    cluster.kill()
    killed = cluster.state()
    own_stack.up(["kubernetes"])
    deadline = time.monotonic() + 60
    while "1" not in cluster.kubectl(
        "get", "pod", "box", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.5)

    assert killed is State.STOPPED
    ask = "for i in 1 2 3 4 5 6 7 8 9; do busybox nc -w 2 greeter 2525 && exit; sleep 1; done"
    assert box(ask.replace("sleep", "busybox sleep")) == "hello\n"


def test_a_paused_cluster_does_not_answer_until_it_is_resumed(cluster: Kubernetes) -> None:
    cluster.pause()
    paused = (cluster.state(), cluster.answers())
    cluster.resume()
    cluster.wait_ready(timeout_seconds=30)

    assert paused == (State.PAUSED, False)


def test_down_leaves_no_process_link_group_route_mount_or_namespace(
    own_stack: Stack, cluster: Kubernetes
) -> None:
    network = cluster.network
    namespaces = {link.readlink() for link in Path(f"/proc/{cluster.node_pid}/ns").iterdir()}
    namespaces -= {link.readlink() for link in Path("/proc/self/ns").iterdir()}
    mount = str(cluster.directory)
    cluster.pause()

    own_stack.down(["kubernetes"])

    assert namespaces
    assert processes.members(cluster.directory) == []
    assert not cluster.directory.exists()
    assert not Path(f"/sys/class/net/{network.name}").exists()
    assert control_groups.left(network.name) == []
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    assert network.host not in routes
    assert mount not in Path("/proc/self/mounts").read_text()
    assert namespaces_in_use() & namespaces == set()


def namespaces_in_use() -> set[Path]:
    found = set()
    for pid in processes.pids():
        try:
            found |= {link.readlink() for link in Path(f"/proc/{pid}/ns").iterdir()}
        except OSError:
            continue
    return found
