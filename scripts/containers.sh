#!/bin/bash
# Sonde in containers: an ordinary user, no capabilities, no new privileges, a read-only root file system and 64 MB of /tmp, in the default
# seccomp profile of each runtime that Debian packages; and places that must be refused by name (gVisor, root without rights).
#     bash scripts/containers.sh [PLACE...]      all of them: docker containerd podman-runc podman-crun namespace root-namespace gvisor
# Needs root, apt and a .venv. No registry is asked: the root file system is a Debian with Python 3.11 and the wheel of the last commit.
# One line for each place is printed; all output is left in .bench/containers/results.
set -euo pipefail
cd "$(dirname "$0")/.."
BASE=$PWD/.bench/containers
SYSTEM=$BASE/system
RESULTS=$BASE/results
OPTIONS=(--network none --read-only --cap-drop all --security-opt no-new-privileges --tmpfs /tmp:size=64m,mode=1777 --ulimit nofile=1024:1024 --ulimit nproc=1024:1024)
BARE=(env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/sonde:/opt/tests:/opt/tests/escapes)
[ $# -gt 0 ] || set -- docker containerd podman-runc podman-crun namespace root-namespace gvisor
mkdir -p "$RESULTS"
work=$(mktemp -d) # sockets of the daemons: their paths must be short
daemons=()
trap 'for each in "${daemons[@]}"; do kill "$each" && wait "$each" || true; done 2> /dev/null; rm -rf "$work"' EXIT

install_tools() {
  local wanted=(mmdebstrap podman crun runc runsc containerd docker.io util-linux)
  dpkg -s "${wanted[@]}" > /dev/null 2>&1 || { apt-get update -q && apt-get install -y -q --no-install-recommends "${wanted[@]}"; }
}

build_system() { # a Debian that was unpacked and never configured: python3 and gcc (for one attack) run without that
  if [ ! -e "$SYSTEM/etc/group" ]; then
    local mirror
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -1)
    rm -rf "$SYSTEM"
    mmdebstrap --variant=extract --mode=root --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
      --include=python3,bash,dash,coreutils,grep,util-linux,procps,gcc,libc6-dev,tzdata \
      bookworm "$SYSTEM" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main"
    rm -rf "$SYSTEM"/var/cache/apt "$SYSTEM"/var/lib/apt "$SYSTEM"/usr/share/{doc,man,locale}
    printf 'root:x:0:0::/root:/bin/sh\nsonde:x:10001:10001::/tmp:/bin/sh\n' > "$SYSTEM/etc/passwd"
    printf 'root:x:0:\nsonde:x:10001:\n' > "$SYSTEM/etc/group"
  fi
  .venv/bin/python scripts/release.py --only-build "$BASE/dist" > "$RESULTS/build.log"
  rm -rf "$SYSTEM"/opt/*
  .venv/bin/uv pip install --quiet --target "$SYSTEM/opt/sonde" --python-version 3.11 --only-binary :all: \
    --constraint requirements/base.txt "$BASE"/dist/*.whl
  mkdir -p "$SYSTEM/opt/tests"
  cp -r tests/escapes tests/patience.py tests/system_calls.py "$SYSTEM/opt/tests"
  cat > "$SYSTEM/opt/try.sh" << 'TRY'
set -eu
grep -E '^(Uid|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
python3 -m sonde doctor
python3 -m sonde self-test
cd /tmp
if touch /written 2> /dev/null; then echo "the root file system can be written"; exit 1; fi
printf '09:00 web started\n09:01 payments: connection refused by ledger\n' > app.log
python3 -m sonde ask 'Which service refused the connection?' app.log --quiet --runs-dir /tmp/runs
python3 -m sonde replay last --quiet --runs-dir /tmp/runs
python3 - << 'ATTACKS'
from corpus import payloads
from stage import confined
verdicts = confined("open", None, payloads())
out = [each.payload.id for each in verdicts if each.won or not each.intact]
print(f"attacks: {len(out)} of {len(verdicts)} out", *out)
raise SystemExit(bool(out))
ATTACKS
TRY
}

start() { # LOG COMMAND...: a daemon, which is up when its socket is there
  local log=$1 socket=$2; shift 2
  "$@" > "$RESULTS/$log" 2>&1 &
  daemons+=($!)
  for _ in {1..600}; do [ ! -S "$socket" ] || return 0; sleep 0.1; done
  echo "containers.sh: $1 did not start; see $RESULTS/$log" >&2; return 1
}

podman_run() { podman run --rm "${OPTIONS[@]}" --user 10001:10001 "$@"; }

inside() { # PLACE COMMAND...: run it there
  local place=$1; shift
  case $place in
    docker) # storage of its own; the image is the same root file system
      start dockerd.log "$work/docker" dockerd --data-root "$BASE/docker" --exec-root "$work/exec" --pidfile "$work/pid" -H "unix://$work/docker" \
        --iptables=false --ip6tables=false --bridge=none --storage-driver vfs
      docker -H "unix://$work/docker" version > "$RESULTS/docker.version"
      tar -C "$SYSTEM" -c . | docker -H "unix://$work/docker" import - sonde-trial > /dev/null
      docker -H "unix://$work/docker" run --rm "${OPTIONS[@]}" --user 10001:10001 sonde-trial "$@" ;;
    containerd) # ctr cannot set a user or drop all capabilities, so setpriv does
      printf 'version = 2\nroot = "%s"\nstate = "%s"\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "%s"\n' \
        "$BASE/containerd" "$work/state" "$work/containerd" > "$work/config.toml"
      start containerd-daemon.log "$work/containerd" containerd --config "$work/config.toml"
      ctr --address "$work/containerd" run --rm --rootfs --seccomp --read-only --env PATH=/usr/bin:/bin \
        --mount type=tmpfs,src=tmpfs,dst=/tmp,options=size=64m:mode=1777 "$SYSTEM" "sonde-trial-$$" \
        setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set -all --inh-caps -all --no-new-privs "$@" ;;
    podman-runc) podman_run --runtime runc --rootfs "$SYSTEM" "$@" ;;
    podman-crun) # crun does not like cgroups of both versions at once; where there are, it sees those of the first alone
      unshare --mount sh -c 'umount /sys/fs/cgroup/unified 2> /dev/null; exec "$@"' sh \
        podman run --rm "${OPTIONS[@]}" --user 10001:10001 --runtime crun --rootfs "$SYSTEM" "$@" ;;
    namespace) podman_run --runtime runc --uidmap 0:200000:65536 --gidmap 0:200000:65536 --rootfs "$SYSTEM" "$@" ;;
    root-namespace) # a user namespace in another one, where root is all there is
      setpriv --reuid 10001 --regid 10001 --clear-groups unshare --user --map-root-user \
        unshare --user --map-root-user --mount sh -c 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"' "$SYSTEM" "$@" ;;
    gvisor)
      podman --runtime-flag=ignore-cgroups --runtime-flag=platform=ptrace --runtime-flag=network=none \
        run --rm "${OPTIONS[@]}" --user 10001:10001 --runtime runsc --rootfs "$SYSTEM" "$@" ;;
  esac
}

install_tools
build_system
declare -A REFUSED=([gvisor]="this is gVisor" [root-namespace]="root of a user namespace")
failed=0
for place in "$@"; do
  log=$RESULTS/$place.log
  if [ -n "${REFUSED[$place]:-}" ]; then
    inside "$place" "${BARE[@]}" python3 -m sonde doctor > "$log" 2>&1 && verdict=FAILED || verdict=ok
    grep -q "CANNOT run safely here.*" "$log" && grep -q "${REFUSED[$place]}" "$log" || verdict=FAILED
    echo "$verdict $place: refused, $(grep -o "${REFUSED[$place]}.*" "$log" | head -1)"
  else
    inside "$place" "${BARE[@]}" sh /opt/try.sh > "$log" 2>&1 && verdict=ok || verdict=FAILED
    echo "$verdict $place: $(grep -E '^untrusted code|^everything works|^attacks' "$log" | paste -sd ';')"
  fi
  [ $verdict = ok ] || { failed=1; tail -5 "$log"; }
done
exit $failed
