"""Mails that come back, from a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CORPUS = Path(__file__).parents[1] / "unit" / "intake" / "returned_mails.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(CORPUS.read_text("utf-8"))


def case_of(name: str) -> dict[str, Any]:
    (found,) = (each for each in CASES if each["name"] == name)
    return found


def mail_of(case: Mapping[str, Any], path: str = "bounces@list.example") -> bytes:
    """Return the mail of a case; `path` is the reverse-path of the mail that it is about."""
    fields = {"Date": "Sat, 28 Nov 2026 10:00:05 +0000", "To": path, **case["headers"]}
    if "status" not in case:
        return _written(fields, case["body"])
    kind = case.get("type", "message/delivery-status")
    is_complaint = kind == "message/feedback-report"
    reporting = "" if is_complaint else "Reporting-MTA: dns; mx.example.net\n\n"
    parts = {
        "text/plain; charset=utf-8": case["human"],
        kind: reporting + case["status"].replace("PATH", path),
        "message/rfc822": (
            f"Return-Path: <{path}>\nMessage-ID: <1@list.example>\nTo: members\n\nHello\n"
        ),
    }
    report = kind.partition("/")[2]
    fields["MIME-Version"] = "1.0"
    fields["Content-Type"] = f'multipart/report; report-type={report};\n boundary="=_b/1"'
    body = "".join(f"--=_b/1\nContent-Type: {each}\n\n{text}\n" for each, text in parts.items())
    return _written(fields, f"This is a MIME-encapsulated message.\n\n{body}--=_b/1--\n")


def _written(fields: Mapping[str, str], body: str) -> bytes:
    header = "".join(f"{name}: {value}\n" for name, value in fields.items())
    return f"{header}\n{body}".replace("\n", "\r\n").encode()
