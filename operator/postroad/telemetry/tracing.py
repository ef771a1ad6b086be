"""Spans of mails for OpenTelemetry, where its variables name a receiver (OTLP over HTTP); elsewhere
nothing of it is imported. A span has no address, no content and no text of a reply.

Source: ADR 0095."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

from postroad.errors import NotInstalled
from postroad.telemetry.logs import logger
from postroad.threaded_calls import ThreadedCalls

if TYPE_CHECKING:  # its libraries are those of the extra `tracing`
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OURS = "http/protobuf"

MAX_FLUSH_SECONDS = 2.0
"""For the last spans at the end of a process: a receiver that is away delays no shutdown."""

_KINDS = {"accept": "SERVER", "enqueue": "PRODUCER", "dequeue": "CONSUMER", "attempt": "CLIENT"}
"""The spans that a mail has, and what each is to OpenTelemetry."""

SpanAttributes = Mapping[str, str | int | list[str]]

_log = logger("process")


class MailSpan:
    """A span of one mail, which is sent once it has ended."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: MailTracer, span: Span) -> None:
        self._tracer, self._span = tracer, span

    @property
    def traceparent(self) -> str:
        """The span, as a header or an attribute names it for spans below."""
        its = self._span.get_span_context()
        return f"00-{its.trace_id:032x}-{its.span_id:016x}-{its.trace_flags:02x}"

    def child(self, name: str, attributes: SpanAttributes) -> MailSpan:
        """Begin a span below."""
        return self._tracer.begin(name, self.traceparent, attributes)

    def end(self, attributes: SpanAttributes, *, is_error: bool = False) -> None:
        """End it, unless it has ended."""
        if self._span.is_recording():
            from opentelemetry.trace import StatusCode

            self._span.set_attributes(attributes)
            if is_error:
                self._span.set_status(StatusCode.ERROR)
            self._span.end()


class MailTracer:
    """Begins the spans of mails, and sends them from a thread of its own."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("postroad", version("postroad"))

    def begin(
        self,
        name: str,
        parent: str | None,
        attributes: SpanAttributes,
        began_at: datetime | None = None,
    ) -> MailSpan:
        """Begin a span: below the one that `parent` names, or of a new trace."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if parent is None else {"traceparent": parent}
        context = TraceContextTextMapPropagator().extract(carrier, Context())
        start = None if began_at is None else int(began_at.timestamp() * 1e9)
        span = self._tracer.start_span(
            name, context, SpanKind[_KINDS[name]], attributes, start_time=start
        )
        return MailSpan(self, span)

    async def close(self) -> None:
        """Send what has ended, as far as there is time."""
        try:
            async with asyncio.timeout(MAX_FLUSH_SECONDS):
                await ThreadedCalls(1).run(self._provider.force_flush)
        except TimeoutError:
            _log.warning("the last spans were not sent: their receiver takes too long")


def tracer_of(environment: Mapping[str, str]) -> MailTracer | None:
    """Return the tracer that the variables of OpenTelemetry ask for; None: they ask for none, or
    for what there is not, which is logged: mail goes on without spans."""
    if (
        not any(environment.get(each) for each in ENDPOINTS)
        or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        or "otlp" not in environment.get("OTEL_TRACES_EXPORTER", "otlp")
    ):
        return None
    protocol = next(filter(None, map(environment.get, PROTOCOLS)), OURS)
    if protocol != OURS:
        _log.warning("spans are not sent", error=f"{PROTOCOLS[1]}={protocol}: set {OURS}")
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        error = NotInstalled.lacking("opentelemetry")
        _log.warning("spans are not sent", error=error.explain())
        return None
    resource = Resource.create({"service.version": version("postroad")})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "postroad"}))
    # Without its hook at exit, which waits half a minute for a receiver that is away.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return MailTracer(provider)


def mail_attributes(queue: str, size_bytes: int, recipients: int) -> dict[str, str | int]:
    """Return what the first span of a process has of a mail."""
    return {
        "messaging.system": "postroad",
        "messaging.destination.name": queue,
        "messaging.message.body.size": size_bytes,
        "postroad.recipients": recipients,
    }
