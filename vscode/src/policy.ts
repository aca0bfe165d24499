// What may be read, written and run. The same lists as src/sonde/contexts/workspace/policy.py: the runtime asks, this side decides.
import { WRITTEN_OUT } from "./plain";
import { Refusal } from "./refusal";

const SECRETS = [
  ...[".git", "git~*", ".hg", ".svn", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".secrets"],
  ...[".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd"],
  ...[".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", "htpasswd"],
  ...[".vault_pass*", ".vault-pass*", "ssh_host_*_key"],
  ...[".dockercfg", ".dockerconfigjson", "kubeconfig", "*.kubeconfig", "kubeconfig.y*ml", "kubeconfig.json"],
  ...[".s3cfg", ".boto", ".databrickscfg", "rclone.conf", "service_account*.json"],
  ...["*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg", "*.asc"],
  ...["id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"],
  ...["credentials", "credentials.*", "*.credentials", "secrets", "secrets.*", "secret.*", "*.secret"],
  ...["*.token", "token", "tokens.json", "service-account*.json", "*.tfstate", "*.tfvars", "*.tfvars.json"],
];
const COPIES = [
  ...[".gz", ".bz2", ".xz", ".zst", ".lz4", ".br", ".z", ".zip", ".7z", ".tar", ".tgz"],
  ...["~", ".bak", ".backup", ".old", ".orig", ".save", ".copy", ".tmp", ".swp", ".swo", ".rej"],
];
const HARMLESS = [
  ...[".env.example", ".env.sample", ".env.template", "*.pub", ".browserslistrc", ".nvmrc"],
  ...[".jshintrc", ".markdownlintrc", ".coveragerc"],
];
const STARTS_PROGRAMS = [
  ...[
    ".*rc",
    ".*rc.js",
    ".*rc.cjs",
    ".*rc.mjs",
    ".*rc.ts",
    ".*rc.py",
    "pylintrc",
    ".config",
    ".local",
    ".bash*",
    ".zsh*",
  ],
  ...[
    ".profile",
    ".zprofile",
    ".login",
    ".zlog*",
    ".xsession*",
    ".xprofile",
    ".gitconfig",
    ".tmux*",
    ".pythonstartup*",
  ],
  ...[".vim", ".nvim.lua", ".lazy.lua", ".emacs*", ".doom.d", ".spacemacs*", ".dir-locals.el", ".dir-locals-2.el"],
  ...[".vscode", ".idea", "*.code-workspace", ".devcontainer", ".devcontainer.json", ".vs", ".fleet", ".zed"],
  ...["*.sublime-project", ".theia", ".externaltoolbuilders", ".helix", ".idx", ".gitpod.yml"],
  ...[".cursor", ".windsurf", ".claude*", ".codex", ".gemini", ".aider*", ".roo", ".kiro", ".kilocode", ".cline"],
  ...[".continue", ".amazonq", ".junie", ".opencode", "opencode.json*", ".qwen", "mcp.json", ".mcp.json", "*mcp*.json"],
  ...[".crush.json", "crush.json", ".amp", ".factory", ".augment", ".copilot", "gemini-extension.json", ".openhands"],
  ...[".husky", ".githooks", "githooks", ".git-hooks", ".hooks", ".github/hooks", ".pre-commit-config.yaml"],
  ...[".pre-commit-config.yml", "prek.toml", "lefthook*", ".lefthook*", ".overcommit.yml", ".simple-git-hooks*"],
  ...["simple-git-hooks*", ".lintstagedrc*", ".jj", ".bzr", ".sl", ".gdbinit", ".gdbearlyinit", ".lldbinit*", ".ghci"],
  ...[
    ".rprofile",
    ".iex.exs",
    ".ocamlinit",
    ".ipython",
    ".bundle",
    ".autoenv*",
    ".direnv",
    ".cargo",
    ".gradle",
    ".mvn",
  ],
  ...[".yarn", ".yarnrc*", ".pnpmfile.*", ".pnp.cjs", ".pnp.loader.mjs", "bunfig.toml", "binding.gyp", ".pixi"],
  ...["mise.toml", "mise.*.toml", ".mise*", "launchagents", "launchdaemons", "env/lib", "*.pth", "sitecustomize*"],
  ...["usercustomize*", "node_modules", ".venv", "venv", "site-packages"],
  ...["env/bin", "env/scripts", "pyvenv.cfg", "conda-meta", "conda/activate.d", ".envrc*", ".tool-versions", ".rtx*"],
  ...["mise/config*", "rust-toolchain*", "gradle/wrapper", ".clinerules", ".goose", ".trae", ".agents", ".agent"],
  ...[".pi", ".qoder", ".serena", ".luarc.json*", ".ycm_extra_conf.py", ".kateproject*", "eslint.config.*", ".flake8"],
  ...["prettier.config.*", "stylelint.config.*", ".rubocop*", "lint-staged.config.*", ".cargo-husky", "hk.pkl"],
  ...["captainhook.json", "grumphp.yml*", ".codesandbox", ".replit", ".renviron", "renv/activate.r", "startup.m"],
  ...[".erlang", ".perldb", ".julia", ".logout", "*profile.ps1", "rust-analyzer.toml", ".rust-analyzer.toml", ".bsp"],
  ...[".eslintrc*", ".prettierrc*", ".stylelintrc*", ".babelrc*", ".commitlintrc*", "hie.yaml", ".php-cs-fixer*"],
  ...[".neoconf.json*", ".nlsp-settings", "pylintrc.toml", ".pylintrc.toml", "_vimrc", "_gvimrc"],
];
const SHORT_NAME = /^[^.~]{1,8}~[0-9]+(\.[^.]{0,3})?$/; // `VSCODE~1` is `.vscode` to Windows
const SKIPPED = [
  "node_modules",
  "__pycache__",
  ".venv",
  "venv",
  ".tox",
  ".mypy_cache",
  ".ruff_cache",
  ".pytest_cache",
  "*.pyc",
  "*.vsix",
];

export class Policy {
  constructor(readonly commands: readonly string[] = []) {}

  checkRead(path: string): void {
    if (isSecret(path)) {
      throw new Refusal("PATH_REFUSED", `${path} is protected (secrets and version control are never read or written)`);
    }
  }

  checkWrite(path: string): void {
    this.checkRead(path);
    const parts = partsOf(path);
    // HEAD makes a folder a repository of git.
    if (hit(path, STARTS_PROGRAMS) || parts.some((part) => SHORT_NAME.test(part)) || parts.at(-1) === "head") {
      throw new Refusal(
        "PATH_REFUSED",
        `${path} holds or configures what an editor or git starts and is never written by a patch; ask the user to change it`,
      );
    }
  }

  /** Whether a file or folder of this name shows up in listings and searches. */
  listed(name: string): boolean {
    return !isSecret(name) && !hit(name, SKIPPED);
  }

  /** The words of an allowed command; after `=` nothing may be added to it. No shell ever sees them. This is a first look:
   * `sonde.server.command`, which runs it, checks it again and has the rules for git. */
  checkCommand(command: string): string[] {
    const words = splitWords(command);
    const isAllowed = this.commands.some((allowed) => {
      const typed = splitWords(allowed.replace(/^=/, ""));
      const begins = typed.length > 0 && typed.every((word, n) => words[n] === word);
      return begins && (words.length === typed.length || !allowed.startsWith("="));
    });
    if (!isAllowed) {
      const list = this.commands.map((allowed) => allowed.replace(/^=/, "exactly ")).join(", ");
      throw new Refusal(
        "COMMAND_REFUSED",
        `${JSON.stringify(command)} is not an allowed command; allowed: ${list || "none (execute_command is off)"}`,
      );
    }
    return words;
  }
}

function partsOf(path: string): string[] {
  return path
    .split("/")
    .map((part) => (part.replace(WRITTEN_OUT, "").toLowerCase().split(":")[0] ?? "").replace(/[. ]+$/, ""));
}

/** Whether a name on the way says so, or would without the suffixes of packed files and copies. */
function isSecret(path: string): boolean {
  const plain = partsOf(path).map((name) => {
    let rest = name.replace(/^[ #]+/, "").replace(/[ .#]+$/, "");
    for (let copy = COPIES.find((each) => rest.endsWith(each)); copy; copy = COPIES.find((each) => rest.endsWith(each)))
      rest = rest.slice(0, -copy.length).replace(/[ .#]+$/, "");
    return rest;
  });
  return hit(path, SECRETS) || hit(plain.join("/"), SECRETS);
}

/** Whether a name on the way matches, or two in a row where the pattern has two. */
function hit(path: string, patterns: readonly string[]): boolean {
  const parts = partsOf(path);
  const inARow = parts.slice(1).map((part, n) => `${parts[n]}/${part}`);
  return patterns.some((pattern) =>
    (pattern.includes("/") ? inARow : parts).some(
      (name) => matches(name, pattern) && !HARMLESS.some((fine) => matches(name, fine)),
    ),
  );
}

function matches(name: string, pattern: string): boolean {
  const words = pattern.split("*").map((word) => word.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${words.join("[^]*")}$`).test(name);
}

/** Words as a POSIX shell would see them, with quotes but without anything that a shell does. */
function splitWords(command: string): string[] {
  const words = command.match(/(?:[^\s"']+|"[^"]*"|'[^']*')+/g) ?? [];
  return words.map((word) => word.replace(/"([^"]*)"|'([^']*)'/g, (_, double, single) => double ?? single));
}
