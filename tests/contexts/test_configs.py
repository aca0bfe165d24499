"""Config snapshots and the differences between them."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest

from sonde.contexts.configs import MAX_TEXT_BYTES, ConfigSnapshots, change_type
from sonde.core.canonical import sha256_text
from sonde.errors import ConfigError, ToolFault


def snapshot(root: Path, tag: str, created_at: str, files: dict[str, str | bytes], **more: str) -> None:
    folder = root / tag
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "metadata.json").write_text(
        json.dumps({"created_at": created_at, "git_commit": f"c-{tag}", **more}), "utf-8"
    )


@pytest.fixture
def snapshots(tmp_path: Path) -> ConfigSnapshots:
    snapshot(
        tmp_path,
        "before",
        "2026-01-02T00:00:00+01:00",
        {"app.yaml": "a: 1\nb: 2\n", "prompts/p.txt": "be kind\n"},
        owner="ops",
    )
    snapshot(
        tmp_path, "after", "2026-01-03T00:00:00Z", {"app.yaml": "a: 1\nb: 3\n", "new.txt": "n\n", "blob": b"\xff\x00"}
    )
    return ConfigSnapshots(tmp_path)


def test_snapshots_come_by_time_within_a_window(snapshots: ConfigSnapshots) -> None:
    rows = snapshots.list_config_snapshots("any")

    assert [row["snapshot_id"] for row in rows] == ["before", "after"]
    assert rows[0]["created_at"] == "2026-01-01T23:00:00Z"
    assert rows[0]["metadata"] == {"owner": "ops"}
    assert set(rows[0]) == {"snapshot_id", "project_name", "tag", "created_at", "git_commit", "paths", "metadata"}
    late = snapshots.list_config_snapshots("any", start_time="2026-01-02T12:00:00Z")
    assert [row["snapshot_id"] for row in late] == ["after"]
    assert [row["tag"] for row in snapshots.list_config_snapshots("any", tag="before")] == ["before"]
    assert snapshots.list_config_snapshots("any", end_time="2025-01-01") == []


def test_metadata_behind_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    snapshot(tmp_path, "one", "2026-01-02T00:00:00Z", {})
    path = tmp_path / "one" / "metadata.json"
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())

    assert ConfigSnapshots(tmp_path).get_config_snapshot("one")["git_commit"] == "c-one"


def test_a_diff_names_paths_and_is_cited_by_its_own_hash(snapshots: ConfigSnapshots) -> None:
    found = snapshots.get_config_diff("before", "after")

    assert found.value["paths"] == ["app.yaml", "blob", "new.txt", "prompts/p.txt"]
    assert "-b: 2\n+b: 3" in found.value["diff"]
    assert "sha256" in found.value["diff"]
    assert found.value["diff_ref"] == found.value["artifact_id"] == f"configdiff:{sha256_text(found.value['diff'])}"
    assert (found.value["git_commit_base"], found.value["git_commit_target"]) == ("c-before", "c-after")
    assert found.value["summary"].startswith("4 files changed, 3 lines added, 2 removed")
    (excerpt,) = found.excerpts
    assert sha256_text(snapshots.reread(excerpt) or "") == excerpt.hash
    assert snapshots.get_config_diff("before", "after") == found


def test_equal_snapshots_have_an_empty_diff(snapshots: ConfigSnapshots) -> None:
    found = snapshots.get_config_diff("after", "after")

    assert (found.value["paths"], found.value["diff"]) == ([], "")


def test_large_files_are_compared_by_hash_and_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET", "utf-8")
    root = tmp_path / "snapshots"
    snapshot(root, "a", "2026-01-01T00:00:00Z", {"big": b"x" * (MAX_TEXT_BYTES + 1)})
    snapshot(root, "b", "2026-01-02T00:00:00Z", {"big": b"y" * (MAX_TEXT_BYTES + 1)})
    (root / "b" / "link").symlink_to(secret)

    found = ConfigSnapshots(root).get_config_diff("a", "b")

    assert found.value["paths"] == ["big"]
    assert "SECRET" not in found.value["diff"]


def test_a_long_diff_is_cut_in_the_middle_and_says_so(tmp_path: Path) -> None:
    snapshot(tmp_path, "a", "2026-01-01T00:00:00Z", {"x": "\n".join(map(str, range(20_000)))})
    snapshot(tmp_path, "b", "2026-01-02T00:00:00Z", {"x": "\n".join(map(str, range(1, 40_000, 2)))})

    found = ConfigSnapshots(tmp_path).get_config_diff("a", "b")

    assert found.truncated is not None
    assert len(found.value["diff"]) <= 60_000


@pytest.mark.parametrize(
    ("paths", "kind"),
    [
        (["app/prompts/system.txt", "pyproject.toml"], "prompt"),
        (["pyproject.toml", "app.yaml"], "dependency"),
        (["requirements-dev.txt"], "dependency"),
        (["app.yaml"], "config"),
    ],
)
def test_the_kind_of_change_follows_from_the_paths(paths: list[str], kind: str) -> None:
    assert change_type(paths) == kind


def test_unknown_snapshots_and_bad_times_are_faults(snapshots: ConfigSnapshots) -> None:
    for call in (
        lambda: snapshots.get_config_snapshot("nope"),
        lambda: snapshots.get_config_diff("before", "nope"),
        lambda: snapshots.list_config_snapshots("any", start_time="soon"),
        lambda: ConfigSnapshots().get_config_snapshot("x"),
    ):
        with pytest.raises(ToolFault):
            call()


def test_broken_metadata_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for content in ("{", "[]", "{}"):
        (tmp_path / "a" / "metadata.json").write_text(content, "utf-8")
        with pytest.raises(ConfigError, match=r"metadata\.json"):
            ConfigSnapshots(tmp_path)
    with pytest.raises(ConfigError):
        ConfigSnapshots(tmp_path / "nowhere")
