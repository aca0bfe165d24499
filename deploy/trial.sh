#!/bin/sh
# Builds deploy/Containerfile and asks the doctor in it, on a Debian without a container daemon and without a registry. As root:
#   apt-get install --no-install-recommends buildah runc debootstrap && sh deploy/trial.sh
# In place of python:3.11-slim stands a Debian 12 with its own Python 3.11, so the first line of the file is all that is not tried.
# The doctor runs under runc as in a tight pod: an ordinary user, every capability dropped, the default seccomp profile.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
trap 'buildah rm "${tried:-}" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

base=docker.io/library/python:3.11-slim
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates bookworm "$work/base" >"$work/log" ||
        { cat "$work/log"; exit 1; }
    rm -f "$work"/base/usr/lib/python3*/EXTERNALLY-MANAGED
    made=$(buildah from scratch)
    buildah copy -q "$made" "$work/base" / >/dev/null
    buildah config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$made"
    buildah commit -q --rm "$made" "$base" >/dev/null
fi

# How this machine reaches its packages is lent to the build and stays out of the image.
set --
for path in /etc/pip.conf "$HOME/.config/pip" /etc/ssl/certs ${PIP_FIND_LINKS:-}; do
    if [ -e "$path" ]; then set -- "$@" --volume "$path:$path:ro"; fi
done
buildah bud --pull-never --layers=false "$@" -f "$root/deploy/Containerfile" -t sonde "$root"

tried=$(buildah from --pull-never sonde)
buildah run --isolation oci --runtime runc --cap-drop all "$tried" -- grep -E '^(Uid|CapBnd|Seccomp):' /proc/self/status
buildah run --isolation oci --runtime runc --cap-drop all "$tried" -- sonde doctor
