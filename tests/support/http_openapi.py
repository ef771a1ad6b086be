"""Writes the description (OpenAPI 3.1) of the API of listeners of role http, from the models of its
requests and responses: `python -m support.http_openapi`."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from postroad.intake.web.models import (
    Accepted,
    BatchRequest,
    InjectRequest,
    InjectResponse,
    MailFields,
    MailRequest,
)
from postroad.problems import RETRY_SECONDS, Problem, ProblemDocument
from support.repository import ROOT

FILE = ROOT / "operator" / "postroad" / "intake" / "web" / "openapi.json"

_REF = "#/components/schemas/{model}"

ERRORS = {
    400: "The request, its JSON or its Idempotency-Key is malformed.",
    401: "The user or its password, or the token, is wrong, or is missing.",
    403: "The user may not send with this sender, From or tenant.",
    408: "The body comes too slowly.",
    409: "The Idempotency-Key stands for another mail of the last 24 hours.",
    411: "A message/rfc822 without a length, and not in chunks.",
    413: "The mail, or the body, is larger than accepted.",
    415: "The body has another type, character set or encoding than accepted.",
    422: "A field, or the message, is refused.",
    429: "The user, or the client's address, has sent too many mails.",
    503: "The mail cannot be queued, or the login checked, now.",
}

_MAIL = {
    "from": "a@example.org",
    "to": ["b@example.net"],
    "message": {"subject": "Hello", "text": "Hello, world\n"},
    "delay": "PT15M",
}
_ACCEPTED = {"id": "01936f5e-8d3c-7e6a-9b1f-0a1b2c3d4e5f", "mailId": "9f86d081884c7d65"}
_INJECT = {
    "envelope_sender": "a@example.org",
    "recipients": [{"email": "b@example.net", "name": "B"}],
    "content": {"from": {"email": "a@example.org"}, "subject": "Hello", "text_body": "Hello\n"},
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Requests of a user with one key within 24 hours are one.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def written() -> str:
    """Return the description, as the file has it."""
    return json.dumps(document(), indent=1, sort_keys=True) + "\n"


def document() -> dict[str, Any]:
    """Return the description."""
    accepted = _content(Accepted, _ACCEPTED)
    mail = _content(MailRequest, _MAIL)
    mail["message/rfc822"] = {"schema": {"type": "string"}}
    results = {
        "type": "object",
        "required": ["results"],
        "properties": {"results": {"type": "array", "items": _result()}},
    }
    models: list[tuple[type[BaseModel], Any]] = [
        (each, "validation") for each in (BatchRequest, MailRequest, MailFields, InjectRequest)
    ]
    models += [(each, "serialization") for each in (Accepted, InjectResponse, ProblemDocument)]
    _, definitions = models_json_schema(models, ref_template=_REF)
    schemas = definitions["$defs"]
    # The items are checked one by one, each with a result of its own.
    schemas["BatchRequest"]["properties"]["mails"]["items"] = _ref(MailRequest)
    example = {"results": [{"status": 201, **_ACCEPTED}, _problem(422)]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "postroad: mail by HTTP", "version": "1"},
        "security": [{"basic": []}, {"bearer": []}],
        "paths": {
            "/v1/mails": _post("Queue a mail.", mail, 201, accepted, _query(schemas["MailFields"])),
            "/v1/mails:batch": _post(
                "Queue mails, each with a result.",
                _content(BatchRequest, {"mails": [_MAIL]}),
                207,
                {"application/json": {"schema": results, "example": example}},
            ),
            "/api/inject/v1": _post(
                "Queue a mail for each recipient, by the request of KumoMTA.",
                _content(InjectRequest, _INJECT),
                200,
                _content(InjectResponse, {"success_count": 1, "fail_count": 0}),
            ),
            "/v1/openapi.json": {
                "get": {
                    "summary": "Return this description.",
                    "security": [],
                    "responses": {"200": {"description": "This description."}},
                }
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def _post(
    summary: str,
    body: dict[str, Any],
    status: int,
    answer: dict[str, Any],
    parameters: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    responses: dict[str, Any] = {str(status): {"description": "Queued.", "content": answer}}
    for code, text in ERRORS.items():
        content = {"schema": _ref(ProblemDocument), "example": _problem(code)}
        responses[str(code)] = {
            "description": text,
            "content": {"application/problem+json": content},
        }
        if code in RETRY_SECONDS:
            responses[str(code)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return {
        "post": {
            "summary": summary,
            "parameters": [_KEY, *parameters],
            "requestBody": {"required": True, "content": body},
            "responses": responses,
        }
    }


def _query(envelope: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the parameters of a mail that comes as message/rfc822."""
    return tuple(
        {"name": name, "in": "query", "description": "With message/rfc822.", "schema": schema}
        for name, schema in envelope["properties"].items()
        if name != "attributes"
    )


def _result() -> dict[str, Any]:
    status = {"type": "object", "properties": {"status": {"const": 201}}, "required": ["status"]}
    return {"anyOf": [{"allOf": [status, _ref(Accepted)]}, _ref(ProblemDocument)]}


def _content(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": _ref(model), "example": example}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _problem(status: int) -> dict[str, Any]:
    return Problem(status, ERRORS[status]).document()


if __name__ == "__main__":
    FILE.write_text(written())
