#!/bin/sh
# A real Phoenix server for tests, in an environment of its own: `scripts/phoenix.sh run COMMAND...` installs it on first use,
# starts it on loopback with its SQLite file in a temporary folder, waits until it answers, runs the command with PHOENIX_URL set,
# and stops it. `scripts/phoenix.sh install` only installs.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
home="$root/.phoenix"
uv="$root/.venv/bin/uv"
version="arize-phoenix>=20.26,<21"

install() {
    if ! [ -x "$home/bin/phoenix" ]; then
        "$uv" venv --quiet --allow-existing --python "$root/.venv/bin/python" "$home"
        "$uv" pip install --quiet --python "$home/bin/python" "$version"
    fi
}

free_port() {
    "$root/.venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

healthy() {
    "$root/.venv/bin/python" - "$1" <<'PY'
import sys, urllib.request
try:
    sys.exit(urllib.request.urlopen(sys.argv[1] + "/healthz", timeout=10).status != 200)
except OSError:
    sys.exit(1)
PY
}

run() {
    install
    work=$(mktemp -d)
    port=$(free_port)
    url="http://127.0.0.1:$port"
    PHOENIX_HOST=127.0.0.1 PHOENIX_PORT=$port PHOENIX_GRPC_PORT=$(free_port) PHOENIX_WORKING_DIR="$work" \
        PHOENIX_ALLOW_EXTERNAL_RESOURCES=false PHOENIX_TELEMETRY_ENABLED=false \
        "$home/bin/phoenix" serve >"$work/server.log" 2>&1 &
    server=$!
    trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$work"' EXIT INT TERM
    waited=0
    until healthy "$url"; do
        if ! kill -0 "$server" 2>/dev/null || [ "$waited" -ge 240 ]; then
            echo "phoenix did not start; its log ends with:" >&2
            tail -n 40 "$work/server.log" >&2
            exit 1
        fi
        waited=$((waited + 1))
        sleep 1
    done
    status=0
    PHOENIX_URL="$url" PHOENIX_DB="$work/phoenix.db" "$@" || status=$?
    exit "$status"
}

case "${1:-}" in
    install) install ;;
    run) shift; run "$@" ;;
    *) echo "usage: scripts/phoenix.sh install | run COMMAND [ARGUMENT...]" >&2; exit 2 ;;
esac
