"""Every code block of README and docs/ is run, written or parsed; those that cannot be are marked with the reason, and counted."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import LANGUAGES, ROOT, blocks, indented, pages
from doc_stage import Stage, environment, reply, set_up

from cli.warm_program import warm_sonde
from contexts.traces.trace_servers import KEYS, langfuse, langsmith, serving
from sonde.core.canonical import canonical_json, sha256_text
from sonde.testing import ScriptedServer

pytestmark = pytest.mark.long

MOST_NOT_RUN = 13  # a ceiling, so that marks do not creep in; lower it when one goes. A service, a container and a home are not made here


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with warm_sonde(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


@pytest.mark.parametrize("page", [page for page in pages() if blocks(page)], ids=_name)
def test_the_code_of_a_page_works(page: Path, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_id = set_up(tmp_path)
    with ScriptedServer(reply) as server, serving(langfuse) as (langfuse_url, _), serving(langsmith) as (url, _):
        environ = environment(tmp_path, server.base_url, trace_id, programs)
        environ |= {**KEYS, "LANGFUSE_HOST": langfuse_url, "LANGSMITH_ENDPOINT": f"{url}/api/v1"}
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "TRACE_ID", "HOME"):
            monkeypatch.setenv(name, environ[name])
        monkeypatch.chdir(tmp_path)
        stage = Stage(tmp_path, environ)
        for block in blocks(page):
            if "not run" not in block.directives:
                stage.play(block)


def test_every_block_says_its_language() -> None:
    assert [block.where for page in pages() for block in blocks(page) if block.language not in LANGUAGES] == []


def test_no_code_hides_in_indented_blocks() -> None:
    assert [f"{_name(page)}:{line}" for page in pages() for line in indented(page)] == []


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    marked = [
        (block.where, block.directives["not run"])
        for page in pages()
        for block in blocks(page)
        if "not run" in block.directives
    ]

    print(*marked, sep="\n")
    assert len(marked) <= MOST_NOT_RUN
    assert all(len(reason) > 8 for _, reason in marked)


def test_text_blocks_hold_no_commands() -> None:
    starts = ("sonde ", "import ", "from ", "python ", "pip ", "make ")
    texts = [block for page in pages() for block in blocks(page) if block.language == "text"]

    assert [block.where for block in texts if block.code.startswith(starts)] == []


@pytest.mark.requirement("O10")
def test_the_escape_table_lists_every_family_with_its_number_of_payloads() -> None:
    page = (ROOT / "docs" / "escapes.md").read_text(encoding="utf-8")
    listed = {name: int(count) for name, count in re.findall(r"^\| (\w+) \| (\d+) \|", page, re.MULTILINE)}
    files = (ROOT / "tests" / "escapes" / "payloads").glob("*.toml")

    payloads = {file.stem: tomllib.loads(file.read_text())["payload"].values() for file in files}
    assert listed == {  # the page is about one machine; docs/sandbox.md has the others
        family: sum(each.get("arch", "x86_64") == "x86_64" for each in found) for family, found in payloads.items()
    }


def test_every_relative_link_leads_somewhere() -> None:
    link = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
    found = [(page, target) for page in pages() for target in link.findall(page.read_text(encoding="utf-8"))]
    inside = [(page, target) for page, target in found if not target.startswith("http")]

    assert [f"{_name(page)}: {target}" for page, target in inside if not (page.parent / target).exists()] == []


def test_the_ref_of_a_call_in_the_page_about_tools_is_the_one_that_the_model_reads() -> None:
    arguments, text = sha256_text(canonical_json({"count": 3, "fruit": "apple"})), sha256_text("90")

    assert f"[tool:price:{arguments[:8]}-{text[:8]}]" in (ROOT / "docs" / "add-a-tool.md").read_text(encoding="utf-8")
