"""The network of a cluster: a namespace for each node, joined by a bridge, cut and slowed there.

The bridge has a namespace of its own, so that the machine's firewall never sees the packets between
nodes. One link joins the machine to the bridge. Clients are on this link: the machine itself
(`host`), and one address for each client that has a name. All names begin with the cluster's mark,
by which the next run finds what a crashed run left.
"""

import ipaddress
import json
import subprocess
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from stack import folders, locks

TEST_RANGE = ipaddress.ip_network("198.18.0.0/15")
"""Reserved for tests between networks. Source: RFC 2544."""


class Network:
    """The namespaces and links of one cluster."""

    def __init__(self, mark: str, subnet: str) -> None:
        """Take the mark (at most 10 characters) and the subnet, as `198.18.7.0/24`."""
        self.mark = mark
        self.subnet = ipaddress.ip_network(subnet)

    def address(self, number: int) -> str:
        """Return an address of the subnet; number 1 is the machine's."""
        return str(self.subnet[number])

    @property
    def host(self) -> str:
        """The machine's own address."""
        return self.address(1)

    @property
    def _hub(self) -> str:
        return f"{self.mark}-hub"

    def namespace(self, number: int) -> str:
        """Return the name of the namespace that has this address."""
        return f"{self.mark}-{number}"

    def inside(self, number: int) -> list[str]:
        """Return the command prefix that executes a command in a namespace, in our own mounts."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(number)}", "--"]

    def up(self) -> None:
        """Make the bridge and the machine's link unless they are there."""
        if self._hub in namespaces():
            return
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        _ip("link", "add", self.mark, "type", "veth", "peer", "name", "host", "netns", self._hub)
        _ip("-n", self._hub, "link", "set", "host", "master", "bridge", "up")
        _ip("address", "add", f"{self.host}/{self.subnet.prefixlen}", "dev", self.mark)
        _ip("link", "set", self.mark, "up")

    def attach(self, number: int) -> None:
        """Make the namespace of this address unless it is there."""
        name, port = self.namespace(number), f"port{number}"
        if name in namespaces():
            return
        _ip("netns", "add", name)
        _ip("-n", self._hub, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
        _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")
        address = f"{self.address(number)}/{self.subnet.prefixlen}"
        _ip("-n", name, "address", "add", address, "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def detach(self, number: int) -> None:
        """Remove the namespace of this address, with its link."""
        if self.namespace(number) in namespaces():
            _ip("netns", "del", self.namespace(number))

    def add_client(self, number: int) -> None:
        """Add one more address to the machine's link, unless the link has it."""
        if self.address(number) not in _addresses():
            _ip("address", "add", f"{self.address(number)}/32", "dev", self.mark)

    def cut(self, number: int, incoming: Collection[str], outgoing: Collection[str]) -> None:
        """Drop the packets between a node and these addresses, in both directions; replaces earlier
        cuts."""
        rules = "table inet cut\ndelete table inet cut\n"  # the first line makes it deletable
        if incoming or outgoing:
            rules += "table inet cut {\n"
            for hook, field, peers in (("input", "saddr", incoming), ("output", "daddr", outgoing)):
                rules += f" chain {hook} {{ type filter hook {hook} priority -10;\n"
                rules += "".join(f"  ip {field} {peer} drop\n" for peer in sorted(peers))
                rules += " }\n"
            rules += "}\n"
        _run([*self.inside(number), "nft", "-f", "-"], rules)

    def queue(self, number: int, *, on: bool) -> None:
        """Hand every packet that a node sends to the program that reads queue 0, or to none."""
        table = [*self.inside(number), "iptables", "-w"]
        rule = ["OUTPUT", "!", "-o", "lo", "-j", "NFQUEUE", "--queue-num", "0", "--queue-bypass"]
        there = subprocess.run([*table, "-C", *rule], capture_output=True).returncode == 0
        if there != on:
            _run([*table, "-A" if on else "-D", *rule])


def remove(mark: str) -> None:
    """Remove all namespaces and links with this mark, those of a crashed run included."""
    for name in namespaces():
        if name.startswith(f"{mark}-"):
            _ip("netns", "del", name)
    if Path(f"/sys/class/net/{mark}").exists():
        _ip("link", "del", mark)


def namespaces() -> set[str]:
    """Return the names of all network namespaces."""
    folder = Path("/run/netns")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def make(mark: str) -> Network:
    """Choose a subnet that no link has, and make the network in it."""
    with locks.held(folders.cache_directory() / "locks" / "subnets"):
        taken = [ipaddress.ip_network(route) for route in _routes()]
        blocks = [*TEST_RANGE.subnets(new_prefix=24)]
        start = int(mark[-4:], 16)
        for step in range(len(blocks)):
            block = blocks[(start + step) % len(blocks)]
            if not any(block.overlaps(each) for each in taken):
                network = Network(mark, str(block))
                network.up()
                return network
    raise OSError(f"no subnet of {TEST_RANGE} is free")


def _routes() -> Iterable[str]:
    for route in json.loads(_ip("-j", "-4", "route", "show", "table", "all")):
        if route["dst"] != "default":
            yield route["dst"]


def _addresses() -> set[str]:
    links = json.loads(_ip("-j", "-4", "address"))
    return {each["local"] for link in links for each in link["addr_info"]}


def _ip(*words: str) -> str:
    return _run(["ip", *words])


def _run(command: Sequence[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
