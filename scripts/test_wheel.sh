#!/bin/sh
# The packages as a user gets them: built, installed into an empty environment, and used far from the source tree.
#   sh scripts/test_wheel.sh          builds dist/, installs the wheel, tries it
#   sh scripts/test_wheel.sh sizes    installs each extra alone instead and prints packages and megabytes (docs/install.md)
set -eu
cd "$(dirname "$0")/.."
root=$PWD
uv=$root/.venv/bin/uv
most=25 # packages of the base, Sonde itself included
python=${PYTHON:-$root/.venv/bin/python} # another one: PYTHON=python3.13 sh scripts/test_wheel.sh

if [ -n "${WHEEL:-}" ]; then # as `make release` has built it
    wheel=$WHEEL
else
    rm -rf dist
    "$uv" build --quiet --out-dir dist # the wheel is built from the sdist, so both are tried
    wheel=$(echo "$root"/dist/sonde_rlm-*.whl)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

empty() { # NAME: an environment with nothing in it
    "$uv" venv --quiet --python "$python" "$work/$1"
}
packages() { "$uv" pip list --quiet --python "$work/$1/bin/python" --format json | "$work/$1/bin/python" -c 'import json, sys; print(len(json.load(sys.stdin)))'; }
megabytes() { du -sm "$work/$1" | cut -f1; }

empty base
"$uv" pip install --quiet --python "$work/base/bin/python" "$wheel"
count=$(packages base)
echo "the wheel: $(du -k "$wheel" | cut -f1) kB, $count packages and $(megabytes base) MB installed"
test "$count" -le "$most" || { echo "test_wheel.sh: $count packages are more than $most; look at dependencies in pyproject.toml" >&2; exit 1; }

sizes() { # a line of a table for each extra, installed alone
    printf '| %s | %s | %s |\n|---|---|---|\n' "extra" "packages" "MB installed"
    printf '| (none) | %s | %s |\n' "$count" "$(megabytes base)"
    for extra in $("$work/base/bin/python" -c 'from importlib.metadata import metadata; print(*metadata("sonde-rlm").get_all("Provides-Extra"))'); do
        empty "$extra"
        if "$uv" pip install --quiet --python "$work/$extra/bin/python" "$wheel[$extra]"; then
            printf '| `%s` | %s | %s |\n' "$extra" "$(packages "$extra")" "$(megabytes "$extra")"
        else
            printf '| `%s` | cannot be installed here | |\n' "$extra"
        fi
        rm -rf "${work:?}/$extra"
    done
}

if [ "${1:-}" = sizes ]; then sizes; exit 0; fi

# Nothing of the caller's environment, and no source tree in sight.
cd "$work"
env -i PATH="$work/base/bin:/usr/bin:/bin" HOME="$work" LANG=C.UTF-8 sh "$root/scripts/try_wheel.sh"
