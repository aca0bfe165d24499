#!/bin/bash
# The wheel of the last commit on each Python: doctor, self-test, the wheel tests and the escape corpus, as root or whoever you are.
#     bash scripts/pythons.sh [3.11 3.12 3.13 3.14]      with WHEEL=PATH, that one
# A Python comes from the path or from pyenv. One that is not there comes from Debian's unstable suite, unpacked into .bench/pythons (root,
# mmdebstrap), if it has that version; otherwise it is listed as untried. One line for each is printed; output is left in .bench/pythons.
set -euo pipefail
cd "$(dirname "$0")/.."
BASE=$PWD/.bench/pythons
[ $# -gt 0 ] || set -- 3.11 3.12 3.13 3.14
mkdir -p "$BASE/tests"
if [ -z "${WHEEL:-}" ]; then
  .venv/bin/python scripts/release.py --only-build "$BASE/dist" > "$BASE/build.log"
  WHEEL=$(echo "$BASE"/dist/*.whl)
fi
cp -r tests/escapes tests/patience.py tests/system_calls.py "$BASE/tests"
cp scripts/try_wheel.sh "$BASE/tests"
cat > "$BASE/try.sh" << 'TRY' # PYTHON TESTS
set -eu
"$1" -VV
"$1" -m sonde doctor
"$1" -m sonde self-test
work=$(mktemp -d)
mkdir "$work/bin"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$1" > "$work/bin/python"
printf '#!/bin/sh\nexec "%s" -m sonde "$@"\n' "$1" > "$work/bin/sonde"
chmod +x "$work"/bin/*
(cd "$work" && HOME=$work PATH=$work/bin:$PATH sh "$2/try_wheel.sh")
rm -rf "$work"
"$1" - << 'ATTACKS'
from corpus import payloads
from stage import confined
verdicts = confined("open", None, payloads())
out = [each.payload.id for each in verdicts if each.won or not each.intact]
print(f"attacks: {len(out)} of {len(verdicts)} out", *out)
raise SystemExit(bool(out))
ATTACKS
TRY

found() { # NUMBER: a Python that starts; a shim of pyenv's may be on the path and not start
  local each
  for each in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
    if "$each" -c '' 2> /dev/null; then command -v "$each"; return; fi
  done
}

unpacked() { # NUMBER: Debian's, in a folder of its own
  local system=$BASE/debian-$1 mirror
  [ ! -x "$system/usr/bin/python$1" ] || return 0
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -1)
  rm -rf "$system"
  mmdebstrap --aptopt='Acquire::Check-Valid-Until "false"' --variant=extract --mode=root --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include="python$1,bash,dash,coreutils,grep,procps,gcc,libc6-dev,tzdata" \
    sid "$system" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$BASE/debian-$1.log" 2>&1
}

bare() { env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 "$@"; }

failed=0
for number in "$@"; do
  log=$BASE/$number.log
  python=$(found "$number")
  verdict=ok
  if [ -n "$python" ]; then
    .venv/bin/uv venv --quiet --clear --python "$python" "$BASE/$number"
    .venv/bin/uv pip install --quiet --python "$BASE/$number/bin/python" --constraint requirements/base.txt "$WHEEL"
    bare PYTHONPATH="$BASE/tests:$BASE/tests/escapes" sh "$BASE/try.sh" "$BASE/$number/bin/python" "$BASE/tests" > "$log" 2>&1 || verdict=FAILED
  elif [ "$(id -u)" = 0 ] && unpacked "$number"; then
    system=$BASE/debian-$number
    rm -rf "$system"/opt/*
    .venv/bin/uv pip install --quiet --target "$system/opt/site-packages" --python-version "$number" --only-binary :all: \
      --constraint requirements/base.txt "$WHEEL"
    cp -r "$BASE/tests" "$BASE/try.sh" "$system/opt"
    unshare --mount sh -c 'for each in proc dev; do mount --rbind /$each "$0/$each"; done; exec chroot "$0" "$@"' "$system" \
      env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/site-packages:/opt/tests:/opt/tests/escapes \
      sh /opt/try.sh "/usr/bin/python$number" /opt/tests > "$log" 2>&1 || verdict=FAILED
  else
    echo "untried $number: it is not on this machine and not in Debian's unstable suite"
    continue
  fi
  echo "$verdict $number: $(head -1 "$log"); $(grep -E '^untrusted code|^everything works|^attacks' "$log" | paste -sd ';')"
  [ $verdict = ok ] || { failed=1; tail -5 "$log"; }
done
exit $failed
