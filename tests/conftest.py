"""Which real servers and programs a test may use: `@pytest.mark.needs("rabbitmq", "strace")`.

What is missing skips the test, and fails it where POSTROAD_REQUIRE names it, as CI does.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from _pytest.runner import runtestprotocol
from hypothesis import settings

from stack import packages, tools
from stack.errors import StackError
from stack.progress import Progress
from support.repository import ROOT
from support.server_use import ServerUse

settings.register_profile("calm", deadline=None)
settings.load_profile("calm")
"""The duration of an example depends on the machine, not on the code."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as a shell's `&` leaves it to a run

gc.set_threshold(10_000, 50, 1_000)
"""New objects before a search for cyclic garbage, such searches before a wider one, and wider ones
before one among all objects. By the default, 700 and twice 10, searches were a fifteenth of all
CPU, because a process holds every collected test, and all that these import."""

PACKAGES = {
    "java": "openjdk-17-jre-headless",
    "mvn": "maven",
    "pg_ctlcluster": "postgresql",
    "promtool": "prometheus",
}
"""Programs that have another name than their package."""

SIGNS = {
    "rabbitmq": "POSTROAD_RABBITMQ_URI",
    "cassandra": "POSTROAD_CASSANDRA_CONTACT_POINTS",
    "s3": "POSTROAD_S3_ENDPOINT",
    "minio": "POSTROAD_MINIO_ENDPOINT",
    "kubernetes": "KUBECONFIG",
    "cluster": "POSTROAD_TEST_CLUSTER",
    "peers": "POSTROAD_TEST_PEERS",
    "gitops": "POSTROAD_TEST_GITOPS",
    "james": "POSTROAD_TEST_JAMES",
    "release": "POSTROAD_TEST_RELEASE",
}


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Keep the level of logging to a test: a command that a test runs sets it for the process."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ServerUse(ROOT / "build"))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the modules that have some: in all, that was a fifth of collecting."""
    found = yield
    return [
        each for each in found if not isinstance(each, DoctestModule) or _has_doctests(file_path)
    ]


def _has_doctests(module: Path) -> bool:
    return not module.name.startswith("test_") and ">>>" in module.read_text()


def pytest_collection_finish() -> None:
    """Search what was collected for cyclic garbage no more: it stays to the end."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report of a test in a worker of xdist only what the controller counts: with all six messages
    of a test, the two took longer over these than over most tests."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Format a failure without a search for garbage. CPython 3.11 counts the depth of all parses in
    one number, so a finalizer that parses amid a parse of pytest's ends the run (SystemError)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = set(os.environ.get("POSTROAD_REQUIRE", "").split(","))
    for marker in item.iter_markers("needs"):
        for server in marker.args:
            if _is_there(server):
                continue
            (pytest.fail if server in required else pytest.skip)(_how_to_get(server))


def _is_there(server: str) -> bool:
    if server in SIGNS:
        return bool(os.environ.get(SIGNS[server]))
    return tools.is_prepared(server) if server in tools.TOOLS else _has_program(server)


def _how_to_get(server: str) -> str:
    if server == "cluster":
        return "tests with a cluster of their own run by `make test-cluster`"
    if server == "peers":
        return "tests with other mail servers run by `make test-peers`"
    if server == "gitops":
        return "tests with Flux and Argo CD run by `make test-gitops`"
    if server == "release":
        return "tests of a whole release run by `make test-release`"
    if server in SIGNS:
        return (
            f"{server} is not running: start it with `python -m stack up {server}` "
            "and export what `python -m stack env` prints"
        )
    if server in tools.TOOLS:
        return f"{server} is not built: build it with `python -m stack prepare {server}`"
    return f"{server} is not installed: it is in the package {PACKAGES.get(server, server)}"


def _has_program(name: str) -> bool:
    """Look for a program, and install the package of its name where we may."""
    if shutil.which(name) is None:
        try:
            packages.ensure([PACKAGES.get(name, name)], Progress(quiet=True))
        except StackError:
            pass
    return shutil.which(name) is not None
