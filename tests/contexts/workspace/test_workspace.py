"""What a user and a model see of a workspace: reading, searching, approval, undo, commands, and messages that help."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from sonde.contexts.workspace import (
    Action,
    Approval,
    LocalWorkspace,
    PatchRefused,
    PathRefused,
    Plan,
    Policy,
    Reply,
    WireWorkspace,
    WorkspaceContext,
    accept,
    plan_patch,
)
from sonde.contexts.workspace.masked import MaskedWorkspace
from sonde.core.canonical import sha256_text
from sonde.core.deadline import GRACE_S, Deadline, SystemClock
from sonde.core.mask import Mask
from sonde.core.redaction import PART
from sonde.errors import ToolCallFailed, ToolFault
from sonde.tools import ToolRegistry

ADD = "*** Begin Patch\n*** Add File: lib/new.py\n+x = 1\n*** End Patch"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/app.py").write_text("".join(f"line {n}\n" for n in range(1, 301)))
    (tmp_path / "notes.md").write_text("first\nsecond line\n")
    (tmp_path / ".env").write_text("KEY=line 1\n")
    (tmp_path / "node_modules/x").mkdir(parents=True)
    (tmp_path / "node_modules/x/index.js").write_text("line 1\n")
    (tmp_path / "logo.bin").write_bytes(b"\0line 1\0")
    return tmp_path


@pytest.mark.requirement(62)
def test_listing_leaves_out_secrets_and_generated_files(root: Path) -> None:
    assert LocalWorkspace(root).list_files() == ("logo.bin", "notes.md", "src/app.py")
    assert LocalWorkspace(root).list_files("src/") == ("src/app.py",)


@pytest.mark.parametrize("folder", ["..", "/etc", "nope", ".git", "notes.md"])
def test_listing_elsewhere_is_refused(root: Path, folder: str) -> None:
    with pytest.raises(ToolFault):
        LocalWorkspace(root).list_files(folder)


@pytest.mark.requirement(63)
@pytest.mark.requirement(66)
def test_reading_gives_lines_with_both_ends(root: Path) -> None:
    found = WorkspaceContext(LocalWorkspace(root)).read("src/app.py", 2, 3)

    assert found.value == {"content": "line 2\nline 3", "startLine": 2, "endLine": 3}
    assert found.excerpts[0].ref == "src/app.py:2-3"
    assert found.excerpts[0].hash == sha256_text("line 2\nline 3")


def test_reading_past_the_end_is_clamped_and_beyond_it_refused(root: Path) -> None:
    workspace = LocalWorkspace(root)

    assert workspace.read("notes.md", 2, 99).end_line == 2
    with pytest.raises(ToolFault):
        workspace.read("notes.md", 3)
    with pytest.raises(ToolFault):
        workspace.read("notes.md", 2, 1)


@pytest.mark.parametrize("path", [".env", ".git/config", "../x", "/etc/passwd", "nope", "src"])
def test_reading_what_may_not_be_read_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ToolFault):
        LocalWorkspace(root).read(path)


@pytest.mark.requirement(69)
def test_a_long_read_needs_a_rationale(root: Path) -> None:
    context = WorkspaceContext(LocalWorkspace(root))

    with pytest.raises(ToolFault, match="rationale="):
        context.read("src/app.py")
    assert context.read("src/app.py", rationale="rename every line").value["endLine"] == 300
    assert context.read("src/app.py", 1, 200).value["endLine"] == 200


@pytest.mark.requirement(66)
def test_search_finds_text_with_places_that_can_be_cited(root: Path) -> None:
    context = WorkspaceContext(LocalWorkspace(root))

    found = context.search("line 300")

    assert found.value == [{"path": "src/app.py", "line": 300, "text": "line 300"}]
    assert context.reread(found.excerpts[0]) == "line 300"
    assert context.search("second", "notes.md").value[0]["line"] == 2
    assert context.search("KEY").value == []


def test_a_search_of_masked_files_ends_with_the_run_and_says_so(root: Path) -> None:
    workspace = MaskedWorkspace(LocalWorkspace(root), Mask())
    run = Deadline(SystemClock(), None)

    with run.in_force():
        assert len(workspace.search("second").matches) == 1
        run.stop.set()
        found = workspace.search("second")
    assert (found.matches, found.truncated) == ((), "the run had to end: 0 of 3 files were searched")


def test_reading_a_masked_file_of_one_long_line_ends_with_the_run(root: Path) -> None:
    (root / "long.txt").write_text("- " * PART * 2)
    workspace = MaskedWorkspace(LocalWorkspace(root), Mask())
    run = Deadline(SystemClock(), None)
    run.stop.set()
    run.overtime = GRACE_S + 1

    with run.in_force(), pytest.raises(ToolFault, match="masked when the run had to end"):
        workspace.read("long.txt")


def test_a_search_with_too_many_matches_says_so(root: Path) -> None:
    found = WorkspaceContext(LocalWorkspace(root)).search("line")

    assert len(found.value) == 200
    assert found.truncated


def test_an_empty_query_is_refused(root: Path) -> None:
    with pytest.raises(ToolFault):
        LocalWorkspace(root).search("")


def test_the_tools_can_be_called_through_a_registry(root: Path) -> None:
    registry = ToolRegistry(WorkspaceContext(LocalWorkspace(root, approve=accept)).tools())

    result = registry.call("read", {"path": "notes.md", "rationale": "why not"})

    assert result.result["content"] == "first\nsecond line"
    assert result.excerpts[0].path == "notes.md"
    assert registry.call("apply_patch", {"patch": ADD}).result["applied"]


def test_without_approval_nothing_is_written(root: Path) -> None:
    done = WorkspaceContext(LocalWorkspace(root)).apply_patch(ADD)

    assert not done["applied"]
    assert not (root / "lib").exists()


def test_the_reason_for_a_no_reaches_the_model(root: Path) -> None:
    workspace = LocalWorkspace(root, approve=lambda plan: Approval(accepted=False, reason="use y, not x"))

    done = WorkspaceContext(workspace).apply_patch(ADD)

    assert not done["applied"]
    assert "use y, not x" in done["summary"]


@pytest.mark.requirement(64)
def test_an_applied_patch_reports_summary_and_diff(root: Path) -> None:
    done = WorkspaceContext(LocalWorkspace(root, approve=accept)).apply_patch(ADD)

    assert done["summary"] == "lib/new.py: added +1 -0"
    assert done["diff"] == "--- /dev/null\n+++ b/lib/new.py\n@@ -0,0 +1 @@\n+x = 1\n"


def test_undo_takes_back_the_last_patch_only_and_its_folders(root: Path) -> None:
    workspace = LocalWorkspace(root, approve=accept)
    context = WorkspaceContext(workspace)
    context.apply_patch("*** Begin Patch\n*** Update File: notes.md\n-first\n+1st\n*** End Patch")
    context.apply_patch(ADD)

    workspace.undo()
    assert not (root / "lib").exists()
    assert (root / "notes.md").read_text() == "1st\nsecond line\n"

    workspace.undo()
    assert (root / "notes.md").read_text() == "first\nsecond line\n"
    with pytest.raises(ToolFault):
        workspace.undo()


def test_undo_is_refused_when_the_file_has_changed_since(root: Path) -> None:
    workspace = LocalWorkspace(root, approve=accept)
    WorkspaceContext(workspace).apply_patch(ADD)
    (root / "lib/new.py").write_text("mine\n")

    with pytest.raises(PatchRefused):
        workspace.undo()
    assert (root / "lib/new.py").read_text() == "mine\n"


def test_a_loose_match_is_reported(root: Path) -> None:
    plan = plan_patch("*** Begin Patch\n*** Update File: n\n-\tfirst\n+1st\n*** End Patch", {"n": "  first\n"}.get)

    assert plan.notes == ("n line 1: matched with white space ignored",)
    assert "note:" in plan.summary()


def refusal(text: str, body: str) -> str:
    with pytest.raises(PatchRefused) as caught:
        plan_patch(f"*** Begin Patch\n*** Update File: n\n{body}\n*** End Patch", {"n": text}.get)
    return caught.value.message


def test_ambiguity_lists_the_candidates() -> None:
    message = refusal("class A:\n    x = 1\nclass B:\n    x = 1\n", "-    x = 1\n+    x = 2")

    assert "lines 2 (in `class A:`), 4 (in `class B:`)" in message
    assert "nothing was changed" in message


def test_a_miss_shows_the_nearest_line() -> None:
    assert "line 2: 'def normalize(text):'" in refusal("x\ndef normalize(text):\n", "-def normalise(text):\n+def n():")


def test_a_patch_that_was_applied_earlier_is_recognised() -> None:
    assert "already at line 1" in refusal("new\nx\n", "-old\n+new\n x")


def test_a_malformed_patch_is_answered_with_an_example() -> None:
    assert "*** Begin Patch" in refusal("x\n", "no mark")


LINES = st.lists(st.sampled_from(["", "a", "b", "  a", "\tb", "def f():", "-- x", "@@", "*** End Patch"]), max_size=12)


@example(old=[""], new=["a", ""], ending="\n")
@given(old=LINES, new=LINES, ending=st.sampled_from(["\n", "\r\n"]))
def test_a_whole_file_diff_always_applies_exactly(old: list[str], new: list[str], ending: str) -> None:
    before, after = ("".join(line + ending for line in lines) for lines in (old, new))
    diff = "\n".join(difflib.unified_diff(old, new, "a/n", "b/n", n=99, lineterm=""))
    if not diff or not old or not new:
        return

    plan = plan_patch(diff, {"n": before}.get)

    assert plan.changes[0].new_text == after
    assert plan.changes[0].inverse().new_text == before


@given(patch=st.text(alphabet="*- +@\nabUpdateFile:Begin Patch/.\\\r", max_size=200))
def test_no_text_crashes_the_planner(patch: str) -> None:
    try:
        plan_patch("*** Begin Patch\n" + patch + "\n*** End Patch", {"a": "a\nb\n"}.get)
    except ToolFault:
        pass


@pytest.mark.requirement(65)
def test_commands_are_off_unless_listed(root: Path) -> None:
    with pytest.raises(ToolFault):
        LocalWorkspace(root).execute("echo hello")
    assert "execute_command" not in [tool.name for tool in WorkspaceContext(LocalWorkspace(root)).tools()]


@pytest.mark.requirement(65)
def test_an_allowed_command_runs_without_a_shell(root: Path) -> None:
    workspace = LocalWorkspace(root, policy=Policy(commands=("echo", "pwd", "env"), command_folders=("src",)))
    context = WorkspaceContext(workspace, commands=["echo", "pwd"])

    assert context.execute_command("echo a; rm x")["stdout"] == "a; rm x\n"
    assert context.execute_command("pwd", "src")["stdout"].strip().endswith("/src")
    seen = {line for line in workspace.execute("env").stdout.splitlines() if not line.startswith("GIT_")}
    private = ("TMPDIR=", "TMP=", "TEMP=", "XDG_CACHE_HOME=")
    assert {line for line in seen if not line.startswith(private)} == {
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "LANG=C.UTF-8",
    }
    with pytest.raises(ToolFault):
        workspace.execute("echoes hello")
    with pytest.raises(ToolFault):
        workspace.execute("echo 'unclosed")
    with pytest.raises(PathRefused):
        workspace.execute("pwd", "../..")


def test_a_command_that_hangs_is_stopped_with_its_children(root: Path) -> None:
    policy = Policy(commands=("sh -c",), command_timeout_s=0.2)

    with pytest.raises(ToolFault):
        LocalWorkspace(root, policy=policy).execute("sh -c 'sleep 60 & sleep 60'")


class Editor:
    """The other end of the wire: a folder, and the requests it has seen."""

    def __init__(self, root: Path, answer: bool = True) -> None:
        self.local = LocalWorkspace(root)
        self.answer = answer
        self.seen: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> Reply:
        self.seen.append((kind, fields))
        try:
            return Reply(True, self._output(kind, fields))
        except ToolFault as fault:
            return Reply(False, code="REFUSED", message=fault.message)

    def _output(self, kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        match kind:
            case "list_files":
                return {"files": list(self.local.list_files(fields["root"]))}
            case "context.read":
                found = self.local.read(fields["path"], fields.get("startLine"), fields.get("endLine"))
                return {"content": found.content, "startLine": found.start_line, "endLine": found.end_line}
            case "context.search":
                rows = self.local.search(fields["query"], fields.get("path")).matches
                return {"matches": [{"path": row.path, "line": row.line, "text": row.text} for row in rows]}
            case "read_file":
                return {"content": self.local.text(fields["path"]) or ""}
            case "apply_patch":
                return {"applied": self.answer, "summary": "done" if self.answer else "the user rejected this change"}
            case _:
                return {}


@pytest.mark.requirement(61)
def test_over_the_wire_every_access_is_a_request(root: Path) -> None:
    editor = Editor(root)
    context = WorkspaceContext(WireWorkspace(editor))

    assert context.list_files() == ["logo.bin", "notes.md", "src/app.py"]
    assert context.read("notes.md", 1, 1).value["content"] == "first"
    assert context.search("second").value[0]["path"] == "notes.md"
    assert context.apply_patch("*** Begin Patch\n*** Update File: notes.md\n-first\n+1st\n*** End Patch")["applied"]

    assert [kind for kind, _ in editor.seen] == [
        "list_files",
        "context.read",
        "context.search",
        "read_file",
        "apply_patch",
    ]
    change = editor.seen[-1][1]["plan"][0]
    assert change == {
        "path": "notes.md",
        "action": Action.UPDATE,
        "baseHash": sha256_text("first\nsecond line\n"),
        "newText": "1st\nsecond line\n",
    }


def test_over_the_wire_undo_proposes_the_way_back(root: Path) -> None:
    editor = Editor(root)
    workspace = WireWorkspace(editor)
    WorkspaceContext(workspace).apply_patch("*** Begin Patch\n*** Update File: notes.md\n-first\n+1st\n*** End Patch")

    workspace.undo()

    assert editor.seen[-1][1]["plan"][0]["newText"] == "first\nsecond line\n"


def test_over_the_wire_undo_goes_back_step_by_step_and_a_refused_one_can_be_tried_again(root: Path) -> None:
    editor = Editor(root)
    workspace = WireWorkspace(editor)
    context = WorkspaceContext(workspace)
    for line in ("1st", "one"):
        context.apply_patch(f"*** Begin Patch\n*** Update File: notes.md\n-first\n+{line}\n*** End Patch")

    editor.answer = False
    workspace.undo()
    editor.answer = True
    workspace.undo()
    workspace.undo()

    taken_back = [fields["plan"][0]["baseHash"] for kind, fields in editor.seen if kind == "apply_patch"][2:]
    assert taken_back == [sha256_text(f"{line}\nsecond line\n") for line in ("one", "one", "1st")]
    with pytest.raises(ToolFault):
        workspace.undo()


@pytest.mark.requirement(69)
def test_over_the_wire_a_read_carries_its_rationale(root: Path) -> None:
    editor = Editor(root)
    context = WorkspaceContext(WireWorkspace(editor))

    context.read_file("notes.md", 1, 1, rationale="the heading is to be renamed")
    context.read_file("notes.md", 1, 1)

    assert [fields.get("rationale") for _, fields in editor.seen] == ["the heading is to be renamed", None]


def test_over_the_wire_a_no_and_a_refusal_come_back(root: Path) -> None:
    context = WorkspaceContext(WireWorkspace(Editor(root, answer=False)))

    assert not context.apply_patch("*** Begin Patch\n*** Update File: notes.md\n-first\n+1st\n*** End Patch")["applied"]
    with pytest.raises(ToolFault):
        context.read("nope")


def test_over_the_wire_paths_are_judged_before_they_are_sent(root: Path) -> None:
    editor = Editor(root)

    with pytest.raises(PathRefused):
        WireWorkspace(editor).read("../x")
    assert editor.seen == []


@pytest.mark.requirement("O17")
@pytest.mark.parametrize("path", [".env", "src/id_rsa", ".git/config", "keys/server.pem"])
def test_over_the_wire_secrets_are_not_asked_for_and_not_passed_on(path: str) -> None:
    asked: list[str] = []

    def generous(kind: str, fields: Mapping[str, Any]) -> Reply:
        asked.append(kind)
        return Reply(True, {"files": [path, "a"], "matches": [{"path": path, "line": 1, "text": "KEY"}]})

    workspace = WireWorkspace(generous)

    assert workspace.list_files() == ("a",)
    assert workspace.search("KEY").matches == ()
    plan = plan_patch(f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch", lambda _: None)
    for look in (lambda: workspace.read(path), lambda: workspace.text(path), lambda: workspace.apply(plan)):
        with pytest.raises(PathRefused):
            look()
    assert asked == ["list_files", "context.search"]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"content": "a\nb", "startLine": 4, "endLine": 5}, ("a\nb", 4, 5)),
        ({"content": "a\nb\n", "startLine": 4, "endLine": 5}, ("a\nb", 4, 5)),
        ({"content": "a\r\nb\r\n", "startLine": 4, "endLine": 9}, ("a\nb", 4, 5)),
        ({"content": "a\n", "startLine": 4, "endLine": 5}, ("a\n", 4, 5)),
        ({"content": "", "startLine": 4, "endLine": 4}, ("", 4, 4)),
        ({"content": "a\nb\n"}, ("a\nb", 4, 5)),
        ({"value": "a\nb\n"}, ("a\nb", 4, 5)),
        ({"content": "a", "startLine": True, "endLine": -1}, ("a", 4, 4)),
        ({"content": "a", "startLine": 10**30, "endLine": 10**30}, ("a", 4, 4)),
    ],
)
def test_over_the_wire_the_lines_of_a_read_are_counted_not_believed(
    output: dict[str, Any], expected: tuple[str, int, int]
) -> None:
    found = WireWorkspace(lambda kind, fields: Reply(True, output)).read("a.txt", 4, 5)

    assert (found.content, found.start_line, found.end_line) == expected


def test_over_the_wire_lines_beyond_the_end_are_a_fault_and_an_empty_file_has_none() -> None:
    workspace = WireWorkspace(lambda kind, fields: Reply(True, {"content": ""}))

    with pytest.raises(ToolFault):
        workspace.read("a.txt", 50, 60)
    assert workspace.read("a.txt").total_lines == 0


@pytest.mark.parametrize(
    "output",
    [
        {"matches": [{"path": "a.txt", "line": 3, "text": "x"}]},
        {"results": [{"file": "a.txt", "lineNumber": 3, "preview": "x"}], "truncated": 7},
        {"value": [{"path": "a.txt", "startLine": 3, "content": "x"}]},
    ],
)
def test_over_the_wire_a_search_may_have_the_usual_names(output: dict[str, Any]) -> None:
    """The source document does not say what context.search returns."""
    found = WireWorkspace(lambda kind, fields: Reply(True, output)).search("x")

    assert [(each.path, each.line, each.text) for each in found.matches] == [("a.txt", 3, "x")]
    assert found.truncated is None


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_over_the_wire_the_patch_of_a_file_with_crlf_applies_as_it_stands(end: str) -> None:
    text = "one\r\ntwo\r\nthree" + end.replace("\n", "\r\n").replace("\r\r", "\r")
    sent: list[str] = []

    def editor(kind: str, fields: Mapping[str, Any]) -> Reply:
        sent.append(fields.get("patch", ""))
        return Reply(True, {"content": text, "applied": True})

    patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-three\n+3\n*** End Patch"
    WorkspaceContext(WireWorkspace(editor)).apply_patch(patch)

    lines = sent[-1].split("\n")
    last = "\r" if end else ""
    assert {" one\r", " two\r", f"-three{last}", f"+3{last}"} <= set(lines)
    assert lines[:2] == ["--- a/a.txt", "+++ b/a.txt"]


@pytest.mark.parametrize(
    "output",
    [{}, {"files": 5, "matches": 5}, {"files": [None], "matches": ["x"]},
     {"files": None, "matches": [{"path": 1}], "content": ["x"], "startLine": "1", "endLine": 2, "applied": "yes", "summary": 1}],
)  # fmt: skip
def test_an_answer_without_its_fields_is_the_editors_fault(output: dict[str, Any]) -> None:
    workspace = WireWorkspace(lambda kind, fields: Reply(True, output))

    for look in (
        workspace.list_files,
        lambda: workspace.search("x"),
        lambda: workspace.read("a.txt"),
        lambda: workspace.text("a.txt"),
        lambda: workspace.apply(Plan(changes=())),
        lambda: workspace.execute("ls"),
    ):
        with pytest.raises(ToolCallFailed):
            look()


@pytest.mark.parametrize("word", [True, False])
def test_approval_may_be_a_plain_yes_or_no(root: Path, *, word: bool) -> None:
    done = WorkspaceContext(LocalWorkspace(root, approve=lambda _plan: word)).apply_patch(ADD)

    assert (done["applied"], (root / "lib").exists()) == (word, word)
