"""Runs the user's `kubectl`, and so uses the user's contexts and credentials."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import IO, Any

import click

from postroad.controller.kubernetes.api import GROUP, MAIL_QUEUE
from postroad.errors import InvalidInput, KubernetesRefused, KubernetesUnavailable, NotInstalled

Resource = dict[str, Any]

RESOURCE = f"{MAIL_QUEUE.plural}.{GROUP}"

FORWARDING = re.compile(r"127\.0\.0\.1:(\d+) ->")

ENDED_WITH = "command terminated with exit code"
"""Begins the line that `kubectl exec` adds to the output of a program that failed."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`kubectl` with the user's choice of cluster."""

    options: tuple[str, ...]
    namespace: str | None

    def find(self, name: str, namespace: str | None) -> Resource | None:
        """Return a MailQueue with the owners of its fields, or None.
        Raises: KubernetesUnavailable, KubernetesRefused."""
        return self.get(RESOURCE, name, namespace, "--show-managed-fields")

    def get(self, kind: str, name: str, namespace: str | None, *options: str) -> Resource | None:
        """Return an object, or None. Errors as `find`."""
        output = self._run("get", kind, name, "--ignore-not-found", *options, namespace=namespace)
        return json.loads(output) if output.strip() else None

    def require(self, name: str, namespace: str) -> Resource:
        """Return a MailQueue. Raises: InvalidInput when there is none; else as `find`."""
        found = self.find(name, namespace)
        if found is None:
            raise InvalidInput(f"there is no MailQueue {namespace}/{name}")
        return found

    def all(self, kind: str, namespace: str | None, *options: str) -> Sequence[Resource]:
        """Return the objects that these options of `kubectl get` select. Errors as `find`."""
        output = self._run("get", kind, *options, namespace=namespace)
        found: Sequence[Resource] = json.loads(output)["items"] if output.strip() else []
        return found

    def create(self, manifest: Resource, namespace: str) -> None:
        """Create an object. Errors as `find`."""
        text = json.dumps(manifest)
        self._run("create", "--filename", "-", namespace=namespace, stdin=text)

    def wait_ready(self, pod: str, seconds: int, namespace: str) -> None:
        """Wait for a pod. Errors as `find`."""
        within = f"--timeout={seconds}s"
        self._run("wait", f"pod/{pod}", "--for=condition=Ready", within, namespace=namespace)

    def delete(self, pod: str, namespace: str) -> None:
        """Delete a pod without waiting. Errors as `find`."""
        options = ("--ignore-not-found", "--wait=false")
        self._run("delete", f"pod/{pod}", *options, namespace=namespace, output="name")

    def execute(
        self,
        pod: str,
        container: str,
        namespace: str,
        command: Sequence[str],
        given: IO[bytes] | None = None,
    ) -> int:
        """Run a command in a pod, with this process' output and a file as its input; return its
        exit code. Raises: KubernetesUnavailable, KubernetesRefused when it could not be run."""
        target = ["--namespace", namespace, pod, "--container", container]
        target += [] if given is None else ["--stdin"]
        line = ["kubectl", *self.options, "exec", *target, "--", *command]
        try:
            with subprocess.Popen(  # noqa: S603
                line, stdin=given or subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            ) as running:
                assert running.stderr is not None
                errors = running.stderr.read().splitlines()
        except OSError as error:
            raise _unable(error) from error
        ended = [each for each in errors if each.startswith(ENDED_WITH)]
        if running.returncode > 0 and not ended:
            raise _failure(errors)
        for each in errors:
            if each not in ended:
                click.echo(each, err=True)
        return running.returncode

    def token_of(self, account: str, namespace: str, audience: str) -> str:
        """Return a token of a ServiceAccount, for an hour. Errors as `find`."""
        options = ("--audience", audience, "--duration", "1h")
        output = self._run("create", "token", account, *options, namespace=namespace)
        token: str = json.loads(output)["status"]["token"]
        return token

    def own_token(self) -> str:
        """Return the token of the user, which a plugin of the kubeconfig may have to get. Raises:
        InvalidInput where the user has another credential, KubernetesUnavailable,
        KubernetesRefused."""
        from postroad.adapters.kubernetes.api_requests import access_of

        view = ("config", "view", "--raw", "--minify", "--flatten", "--output", "json")
        done = _run(["kubectl", *self.options, *view])
        if done.returncode:
            raise _failure(done.stderr.strip().splitlines())
        header = asyncio.run(access_of(json.loads(done.stdout)).authorization())
        if header is None:
            raise InvalidInput(
                "the user of this kubeconfig has no token",
                hint="name a ServiceAccount of the namespace: --service-account NAME",
            )
        return header.removeprefix("Bearer ")

    @contextmanager
    def forwarded(
        self, service: str, port: int, namespace: str
    ) -> Iterator[tuple[int, subprocess.Popen[str]]]:
        """Forward a port of loopback (0: any) to port 80 of a Service until the end of the block;
        give its number, and the process that does so. Errors as `find`."""
        line = ["kubectl", *self.options, "port-forward", "--namespace", namespace]
        line += ["--address", "127.0.0.1", f"service/{service}", f"{port or ''}:80"]
        pipe = subprocess.PIPE
        try:
            running = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True)  # noqa: S603
        except OSError as error:
            raise _unable(error) from error
        with running:
            try:
                assert running.stdout is not None
                assert running.stderr is not None
                begun = FORWARDING.search(running.stdout.readline())
                if begun is None:
                    raise _failure(running.stderr.read().strip().splitlines())
                yield int(begun[1]), running
            finally:
                running.terminate()

    def default_namespace(self) -> str:
        """Return the namespace of resources that name none. Raises: KubernetesUnavailable."""
        if self.namespace:
            return self.namespace
        command = ["kubectl", *self.options, "config", "view", "--minify", "--output"]
        return _run([*command, "jsonpath={..namespace}"]).stdout.strip() or "default"

    def _run(
        self, *command: str, namespace: str | None, stdin: str | None = None, output: str = "json"
    ) -> str:
        chosen = namespace or self.namespace
        line = [
            *("kubectl", *self.options, *command),
            *(("--namespace", chosen) if chosen else ()),
            *("--output", output),
        ]
        done = _run(line, stdin)
        if done.returncode:
            raise _failure(done.stderr.strip().splitlines())
        return done.stdout


def _failure(errors: Sequence[str]) -> Exception:
    """Return the error behind kubectl's output: the API server refused, or was not reached."""
    refused = any(each.startswith("Error from server") for each in errors)
    kind = KubernetesRefused if refused else KubernetesUnavailable
    return kind(errors[-1] if errors else "kubectl failed")


def _unable(error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError):
        return NotInstalled(
            "kubectl is not in PATH",
            hint="install it (https://kubernetes.io/docs/tasks/tools), or run postroad in a pod",
        )
    return KubernetesUnavailable(f"kubectl cannot be run: {error}")


def _run(command: Sequence[str], stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603
            command, input=stdin, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise _unable(error) from error


def with_kubectl(command: Any) -> Any:
    """Add kubectl's options of cluster and namespace; the command gets a `kubectl` with them."""

    @click.option("-n", "--namespace", help="The namespace (default: the context's).")
    @click.option("--context", help="The kubeconfig's context.")
    @click.option("--kubeconfig", help="The kubeconfig.")
    @wraps(command)
    def run(
        namespace: str | None, context: str | None, kubeconfig: str | None, **options: Any
    ) -> Any:
        given = {"--context": context, "--kubeconfig": kubeconfig}
        chosen = tuple(part for name, value in given.items() if value for part in (name, value))
        return command(kubectl=Kubectl(chosen, namespace), **options)

    return run
