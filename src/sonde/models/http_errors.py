"""From an HTTP failure to a `ModelCallFailed` that says what was wrong, what to do, and whether to ask again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from sonde.errors import ErrorCode
from sonde.models.families import OPTIONAL

_RETRYABLE = frozenset({408, 409, 425, 429})
_OVERFLOW = re.compile(
    r"context[ _](length|size|window)|maximum context|too many tokens|prompt is too long", re.IGNORECASE
)
_ABOUT_SCHEMA = re.compile(r"response_format|json[_ ]schema|\bschema\b|\bgrammar\b", re.IGNORECASE)


def is_retryable(status: int, detail: str = "") -> bool:
    """Whether the same request may succeed later. A used-up quota has the status of a rate limit but waiting does not help."""
    return (status in _RETRYABLE or status >= 500) and "insufficient_quota" not in detail


def error_detail(body: bytes, clean: Callable[[str], str] = str) -> str:
    """What the server said, in one line. `clean` removes keys before the line is cut: half a key would no longer be found."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _one_line(body.decode("utf-8", "replace"), clean)
    if not isinstance(value, dict):
        return _one_line(str(value), clean)
    document = cast("dict[str, Any]", value)
    return describe_error(document.get("error") or document.get("detail") or document, clean)


def describe_error(error: object, clean: Callable[[str], str] = str) -> str:
    """The message of an error object, with its code where that says more."""
    if not isinstance(error, Mapping):
        return _one_line(str(error), clean)
    fields = cast("Mapping[str, Any]", error)
    message = str(fields.get("message") or json.dumps(dict(fields), default=str))
    notes = [str(fields[key]) for key in ("code", "type") if isinstance(fields.get(key), str)]
    return _one_line(" ".join([message, *(f"[{note}]" for note in notes[:1])]), clean)


def error_status(error: object) -> int:
    """The status inside an error object of a reply that came as 200; 502 when it names none."""
    code = cast("Mapping[str, Any]", error).get("code") if isinstance(error, Mapping) else None
    return int(str(code)) if re.fullmatch(r"[45]\d\d", str(code)) else 502


def is_too_long(status: int, detail: str) -> bool:
    """Whether the prompt is more than the model reads."""
    return status == 413 or (status < 500 and _OVERFLOW.search(detail) is not None)


def error_code(status: int) -> ErrorCode:
    """What a status says about the model."""
    if status >= 500 or status == 408:
        return ErrorCode.MODEL_UNREACHABLE
    codes = {401: ErrorCode.MODEL_UNAUTHORIZED, 403: ErrorCode.MODEL_UNAUTHORIZED}
    codes |= {404: ErrorCode.MODEL_NOT_FOUND, 429: ErrorCode.MODEL_RATE_LIMITED}
    return codes.get(status, ErrorCode.MODEL_OUTPUT_INVALID)


def advice(status: int, model_name: str, detail: str, *, key: str = "OPENAI_API_KEY") -> str:
    """What to do about a status; `key` is the variable that holds the key."""
    if _OVERFLOW.search(detail) or status == 413:
        return "The prompt is longer than the model reads: use a model with a larger window or a lower output limit."
    if "insufficient_quota" in detail:
        return "The account's quota is used up: check its billing."
    texts = {
        401: f"The key was refused or is missing: set {key} to a valid one.",
        403: f"The key may not use {model_name}: check its permissions, or name another model.",
        404: f"Check the model's name ({model_name}) and OPENAI_BASE_URL, which usually ends in /v1.",
        429: "The server asks for fewer requests: try again later, or name another model.",
    }
    if 300 <= status < 400:
        return "Redirects are not followed, so that the key goes nowhere else: give the final address as base URL."
    return texts.get(status, "The server failed." if status >= 500 else "The server refused the request.")


def refused_parameter(body: bytes, sent: Collection[str]) -> str | None:
    """The optional parameter that a 400 complains about, so that it can be left out. None when it complains about something else."""
    detail = error_detail(body)
    if _OVERFLOW.search(detail):
        return None
    optional = [name for name in OPTIONAL if name in sent]
    try:
        param = json.loads(body)["error"]["param"]
    except (ValueError, RecursionError, LookupError, TypeError):
        param = None
    if isinstance(param, str) and (named := param.partition(".")[0]) in optional:
        return named
    mentioned = next((name for name in optional if re.search(rf"\b{name}\b", detail)), None)
    if mentioned is None and "response_format" in optional and _ABOUT_SCHEMA.search(detail):
        return "response_format"
    return mentioned


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """How long the server asks to wait, in seconds; it may send seconds, milliseconds or a date. None when missing or invalid."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    wish = headers.get("retry-after", "")
    if (seconds := _number(wish)) is not None:
        return seconds
    try:
        moment = parsedate_to_datetime(wish)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _one_line(text: str, clean: Callable[[str], str]) -> str:
    return clean(" ".join(text.split()))[:400]
