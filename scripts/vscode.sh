#!/bin/sh
# A real VS Code for `make test-vscode`: code-server from the npm registry, Debian's chromium and ripgrep, playwright-core.
#
#   scripts/vscode.sh install    build it once under .tools/code-server (minutes)
#   scripts/vscode.sh test       install if needed, package the extension, drive the demo, leave screenshots in .tools/shots
#
# The packages' install scripts are not run: they fetch prebuilt binaries from elsewhere. What is native is compiled
# here against the node headers of this machine (NODE_DIR, /usr by default: Debian's libnode-dev or NodeSource).
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
HOME_DIR="$ROOT/.tools/code-server"
CODE="$HOME_DIR/node_modules/code-server"
NODE_DIR=${NODE_DIR:-/usr}

need() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -qq -y "$2" >/dev/null
    else
        echo "vscode.sh: $1 is missing; on Debian: apt-get install $2" >&2
        exit 2
    fi
}

gyp() {
    (cd "$1" && shift && node "$(npm root -g)/npm/node_modules/node-gyp/bin/node-gyp.js" rebuild --nodedir="$NODE_DIR" "$@")
}

install_code() {
    need chromium chromium
    need rg ripgrep
    need g++ build-essential
    mkdir -p "$HOME_DIR"
    cd "$HOME_DIR"
    echo '{"private": true}' > package.json
    npm install --ignore-scripts --no-audit --no-fund code-server@4.100.3 playwright-core@1.52
    (cd "$CODE/lib/vscode" && npm install --ignore-scripts --no-audit --no-fund --omit=dev)
    (cd "$CODE/lib/vscode/extensions" && npm install --ignore-scripts --no-audit --no-fund --omit=dev)
    # argon2 names its output by node-pre-gyp variables, which node-gyp takes as options
    gyp "$HOME_DIR/node_modules/argon2" --module_name=argon2 --module_path="$HOME_DIR/node_modules/argon2/lib/binding/napi-v3"
    for module in @vscode/spdlog native-watchdog node-pty; do
        gyp "$CODE/lib/vscode/node_modules/$module"
    done
    ln -sfn node_modules "$CODE/lib/vscode/node_modules.asar"
    mkdir -p "$CODE/lib/vscode/node_modules/@vscode/ripgrep/bin"
    ln -sf "$(command -v rg)" "$CODE/lib/vscode/node_modules/@vscode/ripgrep/bin/rg"
    touch "$HOME_DIR/.ready"
}

run_test() {
    test -e "$HOME_DIR/.ready" || install_code
    cd "$ROOT/vscode"
    npm ci --no-audit --no-fund
    npm run --silent vsix
    NODE_PATH="$HOME_DIR/node_modules" node test/vscode/demo.mjs "$ROOT"
}

case "${1:-}" in
    install) install_code ;;
    test)    run_test ;;
    *)       echo "usage: scripts/vscode.sh install|test" >&2; exit 2 ;;
esac
