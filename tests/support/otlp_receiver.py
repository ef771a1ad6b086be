"""A receiver of OTLP over HTTP on loopback, which keeps the spans that it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """One span; ids are in hexadecimal digits."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    is_error: bool
    attributes: dict[str, Any]
    seconds: float


class OtlpReceiver:
    """`async with OtlpReceiver() as receiver: … receiver.url … receiver.spans`."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.text = ""  # all requests as JSON, with ids in base64: octets have each sign by chance
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> OtlpReceiver:
        application = web.Application()
        application.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(application, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        while not condition():
            await asyncio.sleep(0.05)

    async def _take(self, request: web.Request) -> web.Response:
        exported = ExportTraceServiceRequest.FromString(await request.read())
        self.text += MessageToJson(exported)
        for of_resource in exported.resource_spans:
            service = _values(of_resource.resource.attributes)["service.name"]
            for each in (span for scope in of_resource.scope_spans for span in scope.spans):
                self.spans.append(
                    ReceivedSpan(
                        service,
                        each.name,
                        each.trace_id.hex(),
                        each.span_id.hex(),
                        each.parent_span_id.hex(),
                        each.status.code == each.status.STATUS_CODE_ERROR,
                        _values(each.attributes),
                        (each.end_time_unix_nano - each.start_time_unix_nano) / 1e9,
                    )
                )
        return web.Response(content_type="application/x-protobuf")


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(given: Any) -> Any:
    kind = given.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in given.array_value.values]
    return getattr(given, kind)
