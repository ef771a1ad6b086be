"""The command line: `python -m stack …`, run from `tests/`."""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stack import clusters, docker, exports, locks, tools
from stack.engine import Engine
from stack.errors import StackError, tail
from stack.local import DEFAULT, NATIVE, Stack
from stack.progress import Progress
from stack.server import State

PLUGINS = Path(__file__).resolve().parents[2] / ".venv" / "bin"
"""Plugins of kubectl."""

CONTROLS = {
    "stop": "end servers the orderly way; their data stay",
    "kill": "end servers without warning (SIGKILL); `up` brings them back with their data",
    "pause": "freeze servers (SIGSTOP)",
    "resume": "let frozen servers go on (SIGCONT)",
    "restart": "stop servers and start them again",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["kubectl"]:
        words.insert(1, "--")  # what follows belongs to kubectl, options too
    options = _parser().parse_args(words)
    progress = Progress(quiet=getattr(options, "quiet", False))
    try:
        options.run(options.target(progress, options), options)
    except (StackError, OSError) as error:
        progress.close()
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        progress.close()
        print(f"stack: {error}\n{error.stderr or ''}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stack: interrupted; `down` removes what was begun", file=sys.stderr)
        return 130
    finally:
        progress.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stack",
        description="Real servers for postroad's tests on this machine.",
        epilog=f"Servers: {', '.join(NATIVE)}. Without names: {', '.join(DEFAULT)}."
        f" `prepare` and `up` also build tools: {', '.join(tools.TOOLS)}.",
    )
    parser.set_defaults(target=lambda progress, _: Stack(progress=progress))
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str,
        text: str,
        run: Callable[[Stack, argparse.Namespace], None],
        *,
        servers: bool = True,
        kind: Callable[[str], str] = _server,
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if servers:
            command.add_argument("servers", nargs="*", metavar="SERVER", type=kind)
        return command

    prepare = add("prepare", "build, download and install servers and tools", _prepare, kind=_part)
    up = add("up", "start servers unless they run, build tools", _up, kind=_part)
    for command in (prepare, up):
        command.add_argument("--quiet", action="store_true", help="no progress")
    add("down", "end servers and remove their data", _down)
    for name, text in CONTROLS.items():
        add(name, text, functools.partial(_control, name))
    logs = add("logs", "show the ends of servers' logs", _logs)
    logs.add_argument("--lines", type=int, default=40, help="of each log")
    logs.add_argument("--follow", action="store_true", help="go on as they grow")
    status = add("status", "show the servers", _status)
    status.add_argument("--json", action="store_true", help="as JSON")
    env = add("env", "print shell exports of the running servers", _env)
    env.add_argument("--plain", action="store_true", help="NAME=value lines, for env(1)")

    publish = add("publish", "let pods reach rabbitmq, cassandra and s3", _publish, servers=False)
    publish.add_argument("namespace", metavar="NAMESPACE")
    add("cut", "cut pods off from published servers", functools.partial(_line, "cut"))
    add("mend", "let pods reach them again", functools.partial(_line, "mend"))
    image = add("image", "build an image and give it to the cluster", _image, servers=False)
    image.add_argument("context", metavar="CONTEXT", type=Path, help="folder with a Dockerfile")
    image.add_argument("name", metavar="NAME:TAG")
    image.add_argument("--file", type=Path, help="another Dockerfile than the context's")
    image.add_argument("--target", help="a stage of the Dockerfile; default: the last one")
    image.add_argument(
        "--build-context", dest="more", action="append", default=[], metavar="NAME=FOLDER"
    )
    text = "clusters of three nodes each, and faults in them (`cluster --help`)"
    clusters.commands.describe(commands.add_parser("cluster", help=text))
    text = "run a command beside a Docker engine: the one that answers, else one of our own"
    engine = add("engine", text, _engine, servers=False)
    engine.add_argument("verb", choices=("run", "down"), help="down: remove our own, with images")
    engine.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    kubectl = add("kubectl", "run kubectl against the cluster", _kubectl, servers=False)
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    return parser


def _server(name: str) -> str:
    if name not in NATIVE:
        raise argparse.ArgumentTypeError(f"no server is called {name}")
    return name


def _part(name: str) -> str:
    return name if name in tools.TOOLS else _server(name)


def _prepare(stack: Stack, options: argparse.Namespace) -> None:
    stack.prepare(options.servers)


def _up(stack: Stack, options: argparse.Namespace) -> None:
    stack.up(options.servers)


def _down(stack: Stack, options: argparse.Namespace) -> None:
    stack.down(options.servers)


def _control(control: str, stack: Stack, options: argparse.Namespace) -> None:
    present = [server.name for server in stack.servers() if server.state() is not State.ABSENT]
    for name in options.servers or present:
        getattr(stack.server(name), control)()


def _env(stack: Stack, options: argparse.Namespace) -> None:
    variables = stack.environments(options.servers)
    print(exports.render(variables, plain=options.plain), end="")


def _publish(stack: Stack, options: argparse.Namespace) -> None:
    stack.publish(options.namespace)


def _line(change: str, stack: Stack, options: argparse.Namespace) -> None:
    for server in stack.servers():
        ports = server.service_ports() if server.state() is not State.ABSENT else {}
        if ports and (server.name in options.servers or not options.servers):
            getattr(stack.kubernetes, change)(ports.values())


def _image(stack: Stack, options: argparse.Namespace) -> None:
    more = {
        name: Path(folder) for name, _, folder in (each.partition("=") for each in options.more)
    }
    stack.image(options.context, options.name, options.file, options.target, more)


def _engine(stack: Stack, options: argparse.Namespace) -> None:
    own = Engine(stack.directory / "engine")
    busy = "docker: another command uses the engine, waiting"
    with locks.held(stack.directory / "locks" / "engine", lambda: stack.progress.say(busy)):
        if options.verb == "down":
            own.remove()
        else:
            sys.exit(_beside(own, options.command, stack.progress))


def _beside(own: Engine, command: Sequence[str], progress: Progress) -> int:
    """Run a command beside the engine that answers, else beside our own; return its exit code."""
    if not command:
        raise StackError("name the command that is to run: engine run COMMAND")
    if docker.engine_answers():
        return subprocess.run(command, check=False).returncode
    own.start(progress)
    try:
        return own.run(command, os.environ)
    finally:
        own.stop()


def _kubectl(stack: Stack, options: argparse.Namespace) -> None:
    program, _, configuration = stack.kubernetes.kubectl.command()
    # An option before the name of a plugin would hide it, so the variable names the cluster.
    folders = (Path(program).parent, PLUGINS, os.environ["PATH"])
    own = {"KUBECONFIG": configuration, "PATH": os.pathsep.join(map(str, folders))}
    os.execvpe(program, [program, *options.arguments[1:]], os.environ | own)


def _status(stack: Stack, options: argparse.Namespace) -> None:
    rows = []
    for name in options.servers or NATIVE:
        server = stack.server(name)
        state = server.state()
        rows.append(
            {
                "server": server.name,
                "state": state.value,
                "provider": server.provider,
                "endpoint": "" if state is State.ABSENT else server.endpoint,
                "pid": server.pid,
                "memory_bytes": server.memory_bytes,
            }
        )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    table = [["SERVER", "STATE", "PROVIDER", "ENDPOINT", "PID", "MEMORY"]]
    for row in rows:
        size = row["memory_bytes"]
        table.append(
            [
                *(str(row[key]) for key in ("server", "state", "provider", "endpoint")),
                str(row["pid"] or ""),
                f"{size / 2**20:.0f} MiB" if isinstance(size, int) else "",
            ]
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _logs(stack: Stack, options: argparse.Namespace) -> None:
    paths: list[Path] = []
    for name in options.servers or NATIVE:
        paths += [path for path in stack.server(name).logs if path.exists()]
    for path in paths:
        print(f"==> {path}\n{tail(path, options.lines)}", flush=True)
    ends = {path: path.stat().st_size for path in paths}
    while options.follow:
        for path, end in ends.items():
            with path.open("rb") as file:
                file.seek(end)
                if text := file.read():
                    os.write(sys.stdout.fileno(), text)
                    ends[path] = end + len(text)
        time.sleep(0.3)
