"""One page with a run in it: complete, closed to the outside, and safe whatever the run holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from runs.streams import SOURCE, write_story
from sonde.viewer import MODULES, bundle, export_html
from sonde.viewer.server import STATIC


def test_the_page_holds_the_run_and_its_excerpts(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "fetch.py").write_text(SOURCE)
    run = write_story(tmp_path / "runs", root=tmp_path)

    page = export_html(run, tmp_path / "page", within=lambda _run: ["/"]).read_text()
    found = json.loads(re.search(r'id="sonde-data">(.*?)</script>', page).group(1))  # pyright: ignore[reportOptionalMemberAccess]  # it is there

    assert found["runs"][0]["run_id"] == "run-1"
    assert len(found["full"]["run-1"]) == len(run.events())
    assert [each["state"] for each in found["excerpts"]["run-1"]] == ["verified", "verified"]


def test_its_policy_allows_exactly_its_own_script_and_style(tmp_path: Path) -> None:
    page = export_html(write_story(tmp_path), tmp_path / "a.html").read_text()

    for tag, name in (('<script type="module">', "script"), ("<style>", "style")):
        content = page.split(tag)[1].split(f"</{name}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in page


def test_content_cannot_end_the_data_or_start_a_script(tmp_path: Path) -> None:
    run = write_story(tmp_path, remark="</script><script>alert(1)</script><!--")

    page = export_html(run, tmp_path / "a.html").read_text()

    assert page.count("<script") == 2 and page.count("</script>") == 2
    assert "<script>alert" not in page


def test_a_redacted_page_has_no_secrets(tmp_path: Path) -> None:
    run = write_story(tmp_path, remark="sk-proj-abcdefghijklmnop1234 password=hunter22")

    page = export_html(run, tmp_path / "a.html", redact=True).read_text()

    assert "abcdefghijklmnop" not in page and "hunter22" not in page


def test_every_module_of_the_page_is_in_the_bundle_and_no_name_is_used_twice() -> None:
    assert {f"{name}.js" for name in MODULES} == {each.name for each in STATIC.iterdir() if each.name.endswith(".js")}
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", bundle(), flags=re.MULTILINE)
    assert len(names) == len(set(names)) > 40
    assert "import " not in re.sub(r'//.*|".*?"|`.*?`|/.*/', "", bundle())


def test_long_texts_are_cut(tmp_path: Path) -> None:
    run = write_story(tmp_path, remark="z" * 100_000)

    assert export_html(run, tmp_path / "a.html").stat().st_size < 2_000_000
