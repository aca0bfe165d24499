from __future__ import annotations

import json

import pytest

from sonde.errors import ConfigError
from sonde.sandbox import Sandbox
from sonde.sandbox.policy import (
    ALLOWED_MODULES,
    BLOCKED_MODULES,
    PROFILES,
    SAFE_BUILTINS,
    SAFE_EXCEPTIONS,
    SAFE_METHODS,
    import_message,
    profile_named,
)


def test_there_are_five_profiles() -> None:
    assert sorted(PROFILES) == ["analysis", "assign-only", "general", "open", "strict"]


def test_an_unknown_profile_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigError, match="open, general, analysis, strict, assign-only"):
        profile_named("relaxed")


def imported(profile: str, module: str) -> str:
    """What becomes of an import in a sandbox of this profile: "" when it works, otherwise the message."""
    with Sandbox(profile) as box:
        fault = box.execute(f"import {module}").fault
    return "" if fault is None else fault.message


@pytest.mark.requirement(82)
def test_analysis_allows_the_named_modules_and_nothing_else() -> None:
    named = "json re math statistics collections itertools functools operator datetime dataclasses typing copy textwrap hashlib"

    assert frozenset(named.split()) == ALLOWED_MODULES == profile_named("analysis").modules
    assert [module for module in sorted(ALLOWED_MODULES) if imported("analysis", module)] == []
    assert "`random` cannot be imported" in imported("analysis", "random")


@pytest.mark.requirement(81)
@pytest.mark.parametrize("module", sorted(BLOCKED_MODULES))
def test_a_blocked_module_is_not_importable_in_any_profile_with_rules(module: str) -> None:
    assert f"`{module}` cannot be imported in this sandbox" in imported("analysis", module)
    assert "cannot be imported" in imported("analysis", f"{module}.path")
    assert "cannot be imported" in imported("general", f"{module}.path")
    assert bool(imported("general", module)) is (module != "urllib")  # a part of it is there
    assert imported("strict", module)
    assert "in this sandbox" not in imported("open", module)  # there the kernel alone decides


def test_submodules_go_with_their_package() -> None:
    assert imported("analysis", "collections.abc") == ""
    assert "cannot be imported" in imported("analysis", "collectionsx")


@pytest.mark.requirement(81)
def test_the_import_error_lists_what_is_allowed() -> None:
    text = import_message(profile_named("analysis")).replace("{module}", "os")

    assert text.startswith("`os` cannot be imported")
    assert all(module in text for module in ALLOWED_MODULES)
    assert "without imports" in import_message(profile_named("strict"))


@pytest.mark.requirement(38)
def test_strict_lists_hold_what_runs_need_and_nothing_that_walks_attributes() -> None:
    assert {"isinstance", "repr", "hasattr", "len", "sorted", "print"} <= SAFE_BUILTINS
    assert len(SAFE_EXCEPTIONS) >= 5
    assert "BaseException" not in SAFE_EXCEPTIONS
    assert not SAFE_METHODS & {"format", "format_map", "mro", "gi_frame", "with_traceback", "encode", "decode"}
    assert not SAFE_BUILTINS & {
        "getattr",
        "setattr",
        "type",
        "object",
        "eval",
        "exec",
        "open",
        "vars",
        "super",
        "format",
    }


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_what_the_worker_gets_is_plain_data(name: str) -> None:
    wire = profile_named(name).to_wire()

    assert json.loads(json.dumps(wire)) == wire
    assert wire["host_calls"] is (name != "assign-only")
