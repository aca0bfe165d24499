#!/bin/sh
# A real browser for `make test-browser`: Debian's chromium, driven by playwright-core from the npm registry under .tools/browser.
# Nothing is downloaded by playwright itself.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
HOME_DIR="$ROOT/.tools/browser"

if ! command -v chromium >/dev/null; then
    test "$(id -u)" = 0 || { echo "browser.sh: chromium is missing; as root: apt-get install chromium" >&2; exit 2; }
    apt-get update -q && apt-get install -q -y --no-install-recommends chromium
fi
command -v npm >/dev/null || { echo "browser.sh: npm is missing; on Debian: apt-get install nodejs npm" >&2; exit 2; }

mkdir -p "$HOME_DIR"
cd "$HOME_DIR"
test -e package.json || echo '{"private": true}' > package.json
test -d node_modules/playwright-core || npm install --ignore-scripts --no-audit --no-fund playwright-core@1.52
