"""The only writer: a folder of text files, here or behind an editor, changed only by plans that someone approved."""

from sonde.contexts.workspace.base import (
    Action,
    Applied,
    Approval,
    Approve,
    CommandResult,
    FileSlice,
    Matches,
    PatchRefused,
    PathRefused,
    Plan,
    Workspace,
    accept,
    reject,
)
from sonde.contexts.workspace.context import WorkspaceContext
from sonde.contexts.workspace.local import PLAIN, LocalWorkspace
from sonde.contexts.workspace.planner import plan_patch
from sonde.contexts.workspace.policy import Policy
from sonde.contexts.workspace.text import visible
from sonde.contexts.workspace.wire import Reply, WireWorkspace

__all__ = [
    "PLAIN",
    "Action",
    "Applied",
    "Approval",
    "Approve",
    "CommandResult",
    "FileSlice",
    "LocalWorkspace",
    "Matches",
    "PatchRefused",
    "PathRefused",
    "Plan",
    "Policy",
    "Reply",
    "WireWorkspace",
    "Workspace",
    "WorkspaceContext",
    "accept",
    "plan_patch",
    "reject",
    "visible",
]
