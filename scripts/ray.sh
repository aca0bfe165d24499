#!/bin/sh
# Ray in an environment of its own, .tools/ray, with the project installed in it (editable): what the Ray tests and benchmarks run in.
#   sh scripts/ray.sh                 install, once
#   sh scripts/ray.sh run COMMAND …   install if needed, then run COMMAND with that environment first in PATH
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
home="$root/.tools/ray"
uv="$root/.venv/bin/uv"

if [ ! -f "$home/.ready" ]; then
    test -x "$uv" || { echo "run make venv first: $uv is missing" >&2; exit 2; }
    "$uv" venv --quiet --allow-existing --python "$root/.venv/bin/python" "$home"
    # ray:// addresses need the client, which speaks gRPC.
    # Compiled, as pip does: otherwise every worker of every node compiles Ray anew where Python may not write.
    "$uv" pip install --quiet --compile-bytecode --python "$home/bin/python" --editable "$root[cluster,data]" "ray[client]>=2.40" pytest pytest-timeout pytest-randomly pytest-socket hypothesis
    touch "$home/.ready"
fi
[ "${1:-}" = run ] || exit 0
shift
export RAY_USAGE_STATS_ENABLED=0 PATH="$home/bin:$PATH"
exec "$@"
