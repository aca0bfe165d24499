"""Values on their way out of Monty: checked and made JSON-like, as the frames of the kernel backend are."""

from __future__ import annotations

from typing import Any, cast

MAX_DEPTH = 100


def argument(value: Any, depth: int = 0) -> Any:
    """An argument of a host call; TypeError for what is not JSON-like."""
    if depth > MAX_DEPTH:
        raise ValueError("the value is nested too deeply for a host call")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [argument(each, depth + 1) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_key(key): argument(each, depth + 1) for key, each in cast("dict[Any, Any]", value).items()}
    raise TypeError(f"a {type(value).__name__} is not JSON-like: pass str, numbers, lists, dicts or bytes")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float):
        return str(key)
    raise TypeError(f"keys must be str, not {type(key).__name__}")


def final_value(value: Any, depth: int = 0) -> Any:
    """The nearest JSON-like value: an answer should not be lost for its type."""
    if depth > MAX_DEPTH:
        return str(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [final_value(each, depth + 1) for each in cast("list[Any]", value)]
    if isinstance(value, set | frozenset):
        return sorted((final_value(each, depth + 1) for each in cast("set[Any]", value)), key=repr)
    if isinstance(value, dict):
        return {str(key): final_value(each, depth + 1) for key, each in cast("dict[Any, Any]", value).items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if getattr(value, "is_dataclass", False):  # an instance of a class of the code, as a stand-in
        return final_value(dict(value.attributes), depth + 1)
    return str(value)
