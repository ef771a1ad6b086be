"""Kopf watches without end: what the API server refuses, it may allow later."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from postroad.adapters.kubernetes.kopf_watch import MAX_BACKOFF, watching_settings
from postroad.controller.kubernetes.api import MAIL_QUEUE


def test_no_error_of_the_api_server_ends_the_operator() -> None:
    backoffs = watching_settings(MAIL_QUEUE, "").networking.error_backoffs
    assert isinstance(backoffs, Iterable)

    for _ in range(2):
        seconds = list(islice(backoffs, 1000))
        assert len(seconds) == 1000
        assert (seconds[0], max(seconds), seconds[-1]) == (1.0, MAX_BACKOFF, MAX_BACKOFF)


def test_the_api_server_ends_a_watch_before_the_operator_gives_it_up() -> None:
    settings = watching_settings(MAIL_QUEUE, "")

    assert (settings.watching.server_timeout, settings.watching.client_timeout) == (290, 300)
    assert (settings.watching.connect_timeout, settings.networking.connect_timeout) == (15, 15)
    assert settings.networking.request_timeout == 30
