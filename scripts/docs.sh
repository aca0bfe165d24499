#!/bin/sh
# The site in site/: pages of docs/, the reference from docstrings, links and anchors checked. A warning is an error.
# mkdocs lives in an environment of its own, .tools/docs, with pinned hashes.
set -eu
cd "$(dirname "$0")/.."
home=.tools/docs
ready=$home/.ready

if [ ! -e "$ready" ] || [ requirements/docs.txt -nt "$ready" ]; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$home"
    .venv/bin/uv pip sync --quiet --python "$home/bin/python" --require-hashes requirements/docs.txt
    touch "$ready"
fi

rm -rf build/docs
mkdir -p build/docs/reference
cp -R docs/. build/docs/
for page in SECURITY CONTRIBUTING CHANGELOG; do # pages of the root that the site shows too
    cp "$page.md" "build/docs/$(echo "$page" | tr A-Z a-z).md"
done
.venv/bin/python scripts/reference.py build/docs/reference
"$home/bin/mkdocs" build --strict --clean
echo "site/index.html"
