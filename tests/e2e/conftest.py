"""The operator of this source, installed once; namespaces of one test, or of one module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stack
from support.installation import Installation, build_image
from support.kubectl import Kubectl
from support.sandbox import Sandbox, new_sandbox


@pytest.fixture(scope="session")
def running_stack() -> stack.Stack:
    """The running servers, which these tests also kill."""
    return stack.Stack()


@pytest.fixture(scope="session")
def installation(running_stack: stack.Stack) -> Installation:
    """The operator in the running cluster."""
    kubectl = Kubectl(running_stack.kubernetes.kubectl.command())
    installed = Installation(kubectl, running_stack.environment(), build_image(running_stack))
    installed.install()
    return installed


@pytest.fixture
def sandbox(
    installation: Installation, running_stack: stack.Stack, tmp_path: Path
) -> Iterator[Sandbox]:
    """A namespace with everything a MailQueue needs but the MailQueue."""
    with new_sandbox(installation, running_stack, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_sandbox(
    installation: Installation, running_stack: stack.Stack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """A sandbox for all tests of a module."""
    folder = tmp_path_factory.mktemp("shared")
    with new_sandbox(installation, running_stack, folder) as made:
        yield made
