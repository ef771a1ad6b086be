"""Which variables of OpenTelemetry lead to spans, and what is imported without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postroad.telemetry.tracing import tracer_of

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "mail"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "true"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_receiver_there_are_no_spans(environment: dict[str, str]) -> None:
    assert tracer_of(environment) is None


@pytest.mark.parametrize(
    "given", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
)
def test_spans_for_another_protocol_are_not_sent_and_the_log_names_what_to_set(
    given: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert tracer_of({**ENDPOINT, given: "grpc"}) is None

    (record,) = caplog.records
    assert "grpc" in vars(record)["error"]
    assert "http/protobuf" in vars(record)["error"]


def test_an_installation_without_the_extra_goes_on_and_its_log_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    assert tracer_of(ENDPOINT) is None

    (record,) = caplog.records
    assert "postroad[tracing]" in vars(record)["error"]


def test_processes_without_spans_import_nothing_of_opentelemetry() -> None:
    program = (
        "import sys\n"
        "from postroad.cli.processes import mta\n"
        "from postroad.telemetry.tracing import tracer_of\n"
        "tracer_of({})\n"
        "print([each for each in sys.modules if each.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
