"""Clients of S3 share what boto3 reads about it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import boto3
import pytest

from postroad.adapters.s3 import clients as models
from postroad.adapters.s3 import store
from postroad.adapters.s3.clients import Access
from postroad.adapters.s3.store import Store

ACCESS = Access("http://127.0.0.1:1", "eu-west-1", "key", "secret")
THREADS = 8


def model_of(client: Any) -> dict[str, Any]:
    description: dict[str, Any] = client.meta.service_model._service_description
    return description


def undocumented(read: Any) -> Any:
    if isinstance(read, dict):
        return {
            name: "" if name == "documentation" and isinstance(value, str) else undocumented(value)
            for name, value in read.items()
        }
    return [undocumented(each) for each in read] if isinstance(read, list) else read


def test_nothing_but_documentation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # botocore rewrites the path of an operation in place when a client first calls it.
    monkeypatch.setattr(models, "_FILES", models.LeanFiles())
    whole = boto3.session.Session().client("s3", region_name="eu-west-1")

    lean = model_of(Store(ACCESS)._client(None))

    assert lean == undocumented(model_of(whole))
    assert lean != model_of(whole)


def test_all_stores_share_what_was_read() -> None:
    clients = [Store(ACCESS)._client(None), Store(ACCESS)._client(timedelta(seconds=60))]

    assert model_of(clients[0])["shapes"] is model_of(clients[1])["shapes"]


def test_threads_that_come_at_once_get_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, together, shared = list[object](), Barrier(THREADS), Store(ACCESS)

    def open_client(**options: Any) -> object:
        assert models.OPENING.locked()
        opened.append(models.open_client(**options))
        return opened[-1]

    def ask(_: int) -> object:
        together.wait(10)
        return shared._client(None)

    monkeypatch.setattr(store, "open_client", open_client)
    with ThreadPoolExecutor(THREADS) as threads:
        assert set(threads.map(ask, range(THREADS))) == set(opened)
    assert len(opened) == 1
