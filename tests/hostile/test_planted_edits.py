"""A model that a stranger steers edits a workspace: it plants nothing that starts by itself, and hides nothing from who approves."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from victim import Victim

TRY = """
for path in {paths!r}:
    try:
        apply_patch("*** Begin Patch\\n*** Add File: " + path + "\\n+planted\\n*** End Patch")
    except Exception as refused:
        print(refused)
"""
HOOKS = [
    ".pre-commit-config.yaml",
    "lefthook.yml",
    ".lefthook.yml",
    "lefthook-local.yml",
    ".husky/pre-commit",
    ".githooks/x",
    ".git-hooks/x",
    ".pre-commit-config.yml",
    "prek.toml",
    ".simple-git-hooks.json",
    "simple-git-hooks.cjs",
]
EDITORS = [
    ".helix/config.toml",
    ".zed/tasks.json",
    ".vscode/tasks.json",
    ".idea/x.xml",
    ".devcontainer/devcontainer.json",
    ".theia/tasks.json",
    ".externalToolBuilders/x.launch",
    *("rust-analyzer.toml", ".rust-analyzer.toml", "sub/.bsp/x.json", ".neoconf.json", ".nlsp-settings/x.json"),
    *("pylintrc.toml", ".pylintrc.toml", "_vimrc"),
]
ASSISTANTS = [
    *(".aider.conf.yml", ".roo/mcp.json", ".kiro/settings/mcp.json", "opencode.json", "mcp.json", "sub/.mcp.json"),
    *(".cursor/mcp.json", ".claude/settings.json", ".continue/config.yaml"),
    *(".crush.json", "crush.json", ".amp/settings.json", ".factory/mcp.json", ".augment/x", ".copilot/mcp-config.json"),
    *("my-mcp-servers.json", "gemini-extension.json"),
]
STARTERS = [
    *("x.pth", "lib/sitecustomize.py", "usercustomize.py", "node_modules/.bin/eslint", ".venv/bin/python", ".envrc"),
    *(
        ".cargo/config.toml",
        ".yarnrc.yml",
        ".pnpmfile.cjs",
        ".npmrc",
        "docs/HEAD",
        ".jj/repo/config.toml",
        ".gdbinit",
        "mise.toml",
    ),
    *("mise.local.toml", ".mise.toml", ".config/mise/config.toml", ".pnp.cjs", ".pnp.loader.mjs", "binding.gyp"),
    *(".mvn/jvm.config", ".pylintrc", "env/lib/x.py", ".pixi/envs/x", ".bashrc", ".zshrc", ".profile", ".gitconfig"),
    *(
        ".bash_logout",
        ".config/autostart/x.desktop",
        ".gradle/init.gradle",
        ".zshenv",
        ".bash_profile",
        ".Rprofile",
        ".ghci",
        ".pdbrc",
        ".vim/plugin/x.vim",
        ".config/fish/config.fish",
        ".tmux.conf",
    ),
    *(
        "sitecustomize/__init__.py",
        "lib/usercustomize/x.py",
        "pylintrc",
        ".eslintrc.js",
        ".eslintrc.json",
        ".prettierrc",
        "hie.yaml",
        ".github/hooks/x.json",
        ".xonshrc",
    ),
    *(
        ".config/nushell/config.nu",
        ".config/environment.d/x.conf",
        ".config/Code/User/settings.json",
        ".pythonrc",
        ".hgrc",
    ),
    *(
        ".spacemacs",
        ".ideavimrc",
        ".some-new-toolrc",
        ".lintstagedrc.json",
        "Library/LaunchAgents/x.plist",
        ".local/bin/x",
    ),
    *(".ipython/profile_default/startup/x.py", ".bazelrc", ".bundle/config", "githooks/pre-commit", ".emacs"),
]
FINE = ("b.txt", "env/b.txt", "mise/b.txt", "b~", ".jshintrc", ".nvmrc", "config/b.txt")
SPELLINGS = [
    ".VSCODE/tasks.json",
    ".vscode./tasks.json",
    "LEFTHOOK.YML",
    ".mcp.json ",
    ".vscode:x/tasks.json",
    ".hu\u200csky/pre-commit",
    "VSCODE~1/tasks.json",
    "HUSKY~12/pre-commit",
    "MCP~1.JSO",
]


@pytest.mark.parametrize("paths", [HOOKS, EDITORS, ASSISTANTS, STARTERS, SPELLINGS])
def test_no_patch_writes_what_starts_by_itself(victim: Victim, paths: Sequence[str]) -> None:
    victim.write("a.txt", "one\n")
    model = victim.model(TRY.format(paths=[*paths, *FINE]), "FINAL('done')")

    done = victim.call("edit", "Add b", ".", "--yes", "--large", "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 0, done.stderr
    left = {path.relative_to(victim.folder).as_posix() for path in victim.folder.rglob("*") if path.is_file()}
    assert left == {"a.txt", *FINE}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6711])
def test_a_changed_program_of_somebody_else_stays_theirs_and_runs_as_nobody(victim: Victim, mode: int) -> None:
    program = victim.folder / "tool.sh"
    program.write_text("one\n")
    os.chown(program, 12345, 12346)
    program.chmod(mode)
    patch = "*** Begin Patch\n*** Update File: tool.sh\n-one\n+two\n*** End Patch"
    model = victim.model(f"print(apply_patch({patch!r}))", "FINAL('done')")

    done = victim.call("edit", "Change it", ".", "--yes", "--large", "--runs-dir", victim.own, "--model", model.name)

    found = program.stat()
    assert program.read_text() == "two\n", done.stderr
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (12345, 12346, mode & 0o777)


@pytest.mark.hostile_long
def test_a_workspace_replaced_by_a_link_while_the_model_thinks_is_not_written_through(victim: Victim) -> None:
    for folder in (victim.folder / "project", victim.own):
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_text("one\n")
    patch = "*** Begin Patch\n*** Update File: a.txt\n-one\n+planted\n*** End Patch"
    model = victim.model("print(list_files())", f"print(apply_patch({patch!r}))", "FINAL('done')")
    player = model.folder / "model"
    swap = f"if [ -e {model.folder}/seen ]; then mv project aside && ln -s {victim.own} project; fi; touch {model.folder}/seen\n"
    first, rest = player.read_text().split("\n", 1)
    player.write_text(f"{first}\n(cd {victim.folder}; {swap.strip()}) 2>/dev/null\n{rest}")

    done = victim.call(
        "edit", "Change it", "project", "--yes", "--large", "--runs-dir", victim.home / "runs", "--model", model.name
    )

    assert (victim.folder / "project").is_symlink(), done
    assert (victim.own / "a.txt").read_text() == "one\n" == (victim.folder / "aside/a.txt").read_text()
