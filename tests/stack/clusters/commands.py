"""The command line: `python -m stack cluster …`, run from `tests/`."""

import argparse
from collections.abc import Callable

from stack import exports, folders
from stack.clusters.cluster import Cluster
from stack.progress import Progress

VERBS = {
    "kill": "end nodes without warning (SIGKILL); `start` brings them back with their data",
    "stop": "end nodes the orderly way",
    "restart": "stop nodes and start them again, one after the other",
    "pause": "freeze nodes (SIGSTOP)",
    "resume": "let frozen nodes go on (SIGCONT)",
    "fill": "leave no space on nodes' disks",
    "free": "give the space back",
    "remove": "take nodes out of their cluster",
    "replace": "put new, empty nodes in the place of lost ones",
}
METHODS = {"fill": "fill_disk", "free": "free_disk"}


def describe(parser: argparse.ArgumentParser) -> None:
    """Give a parser the commands; each sets the function that it runs and the target of that
    function."""
    parser.description = "Clusters on this machine: nodes with a network, a disk and a clock each."
    parser.add_argument("--name", default="default", help="of the cluster, where there are several")
    parser.set_defaults(target=_cluster)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, text: str, run: Callable[[Cluster, argparse.Namespace], None], nodes: str = ""
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run, verb=name)
        if nodes:
            command.add_argument("nodes", nargs=nodes, metavar="NODE")
        return command

    up = add("up", "start a cluster, or those of its nodes that do not run", _up)
    up.add_argument("--cassandra", type=int, default=3, help="nodes, in each data centre")
    up.add_argument("--rabbitmq", type=int, default=3, help="nodes")
    up.add_argument("--s3", type=int, default=2, help="gateways to the one store")
    up.add_argument("--data-centres", type=int, default=1)
    add("down", "end all and remove all data", lambda cluster, _: cluster.down())
    add("status", "show the nodes", _status)
    env = add("env", "print shell exports that lead to the cluster", _env)
    env.add_argument("client", nargs="?", help="with an address and a clock of its own")
    env.add_argument("--plain", action="store_true", help="NAME=value lines, for env(1)")
    for name, text in VERBS.items():
        add(name, text, _each, "+")
    add("start", "start dead nodes, all at once", lambda c, o: c.start(*o.nodes), "+")
    partition = add("partition", "cut groups off from each other: a,b c,d", _partition, "+")
    partition.add_argument("--one-way", action="store_true", help="the second gets nothing")
    add("heal", "let every packet through", lambda cluster, _: cluster.heal())
    slow = add("slow", "hold back packets and syncs of nodes", _slow, "+")
    slow.add_argument("--network", type=float, default=0.0, help="seconds for each packet sent")
    slow.add_argument("--disk", type=float, default=0.0, help="seconds for each sync")
    skew = add("skew", "set the clocks of nodes or clients", _skew, "+")
    skew.add_argument("--seconds", type=float, default=0.0, help="ahead of the machine's")
    skew.add_argument("--rate", type=float, default=1.0, help="1.001 gains 3.6 s an hour")
    new = add("add", "add a node", _add)
    new.add_argument("kind", choices=("cassandra", "rabbitmq", "s3"))
    new.add_argument("--data-centre", default="dc1")
    add("settled", "wait until all nodes agree", lambda cluster, _: cluster.settled())
    add("restore", "undo every fault", lambda cluster, _: cluster.restore())


def _cluster(progress: Progress, options: argparse.Namespace) -> Cluster:
    return Cluster(folders.state_directory() / "clusters" / options.name, progress)


def _up(cluster: Cluster, options: argparse.Namespace) -> None:
    Cluster.up(
        cluster.directory,
        cassandra=options.cassandra,
        rabbitmq=options.rabbitmq,
        s3=options.s3,
        data_centres=options.data_centres,
        progress=cluster.progress,
    )


def _status(cluster: Cluster, options: argparse.Namespace) -> None:
    for name in cluster.nodes:
        node = cluster.node(name)
        size = f"{(node.memory_bytes or 0) / 2**20:.0f} MiB"
        print(f"{name:14}{node.state().value:10}{node.host:16}{size}")


def _env(cluster: Cluster, options: argparse.Namespace) -> None:
    variables = cluster.environment(options.client)
    print(exports.render({"cluster": variables}, plain=options.plain), end="")


def _each(cluster: Cluster, options: argparse.Namespace) -> None:
    for name in options.nodes:
        getattr(cluster, METHODS.get(options.verb, options.verb))(name)


def _partition(cluster: Cluster, options: argparse.Namespace) -> None:
    groups = [group.split(",") for group in options.nodes]
    cluster.partition(*groups, one_way=options.one_way)


def _slow(cluster: Cluster, options: argparse.Namespace) -> None:
    for name in options.nodes:
        cluster.slow(name, network=options.network, disk=options.disk)


def _skew(cluster: Cluster, options: argparse.Namespace) -> None:
    for name in options.nodes:
        cluster.skew(name, options.seconds, options.rate)


def _add(cluster: Cluster, options: argparse.Namespace) -> None:
    print(cluster.add(options.kind, options.data_centre))
