#!/bin/bash
# Sonde's sandbox on kernels of other machines, under full emulation (qemu-user would not emulate seccomp):
#     bash scripts/emulated.sh arm64 6.1 6.12       bash scripts/emulated.sh amd64 5.10 6.1 6.12
# Builds everything from Debian packages and wheels in .bench/emulated, with the sources of this machine's own apt. Needs root.
# ONLY=corpus-root,reach runs these steps alone; ONLY=nothing only builds. The guest runs scripts/emulated_guest.sh; what it found is left in .bench/emulated/ARCH/results-KERNEL.
set -euo pipefail
cd "$(dirname "$0")/.."
ARCH=$1; shift
BASE=$PWD/.bench/emulated/$ARCH
APT=$BASE/apt
SUITE=bookworm  # the system of the guests: Python 3.11, the oldest that we support
declare -A SUITE_OF=([5.10]=bullseye [6.1]=bookworm [6.12]=trixie [6.12-16k]=trixie)
declare -A MACHINE=([arm64]=aarch64 [amd64]=x86_64)
mkdir -p "$APT"/{lists/partial,cache/archives/partial,etc}

install_tools() {
  local wanted=(qemu-system-arm qemu-system-x86 mmdebstrap kmod cpio xz-utils zstd e2fsprogs)
  dpkg -s "${wanted[@]}" > /dev/null 2>&1 || { apt-get update -q && apt-get install -y -q --no-install-recommends "${wanted[@]}"; }
}

# apt with a state of its own: another architecture, other suites, nothing of this machine but its mirror and keys.
own_apt() {
  : > "$APT/status"
  apt-get -q -o Dir::Etc::sourcelist="$APT/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferencesparts=- \
    -o Dir::State::lists="$APT/lists" -o Dir::State::status="$APT/status" -o Dir::Cache="$APT/cache" \
    -o APT::Architecture="$ARCH" -o APT::Architectures="$ARCH" -o APT::Sandbox::User=root -o Acquire::Languages=none \
    -o Acquire::Check-Valid-Until=false "$@"
}

read_sources() {
  [ -s "$APT/sources.list" ] && return
  local mirror suite
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -1)
  for suite in bullseye bookworm trixie; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done > "$APT/sources.list"
  own_apt update || { rm "$APT/sources.list"; exit 1; }
}

build_system() {  # a Debian that was unpacked and never configured: python3 runs without that, and it takes minutes less
  [ -e "$BASE/system/etc/passwd" ] && return
  rm -rf "$BASE/system"
  grep " $SUITE " "$APT/sources.list" > "$APT/$SUITE.list"
  mmdebstrap --architectures="$ARCH" --variant=extract --mode=root --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=python3,python3-venv,libsqlite3-0,busybox-static,bash,dash,coreutils,grep,sed,tar,procps,util-linux,gcc,libc6-dev,git,tzdata,ca-certificates \
    "$SUITE" "$BASE/system" "$APT/$SUITE.list"
  (
    cd "$BASE/system"
    printf 'root:x:0:0::/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n' > etc/passwd.new
    printf 'root:x:0:\nnogroup:x:65534:\n' > etc/group
    printf '127.0.0.1 localhost guest\n' > etc/hosts
    rm -rf var/cache/apt var/lib/apt usr/share/doc usr/share/man usr/share/locale
    mkdir -p src results opt/wheels mnt
    mv etc/passwd.new etc/passwd
  )
}

install_wheels() {  # what Sonde and its tests need, as wheels for that machine; the versions are the pinned ones
  local machine=${MACHINE[$ARCH]} tag platforms=() wheels="$BASE/system/opt/wheels"
  [ -d "$wheels/pytest" ] && return
  for tag in manylinux2014 manylinux_2_17 manylinux_2_28 manylinux_2_34; do platforms+=(--platform "${tag}_$machine"); done
  sed 's/ *\\$//; /^ *--hash/d' requirements/dev.txt > "$APT/pins.txt"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$wheels" "${platforms[@]}" --only-binary=:all: --python-version 3.11 \
    --implementation cp --constraint "$APT/pins.txt" pydantic msgspec httpx2 genai-prices typer rich PyYAML google-re2 markdown-it-py \
    pytest pytest-timeout pytest-randomly pytest-socket pytest-xdist hypothesis pypdf
}

fetch_kernel() {  # KERNEL: its image, and an initrd with busybox and what it takes to mount a virtio disk
  local kernel=$1 folder=$BASE/kernel-$1 flavour=$ARCH package suite=${SUITE_OF[$1]} module path version
  [ -e "$folder/initrd" ] && return
  rm -rf "$folder"; mkdir -p "$folder/initrd.d"/{bin,modules,proc,sys,dev,system}
  case $kernel in *-16k) flavour=arm64-16k ;; esac
  package=$(apt_depends "linux-image-$flavour/$suite")
  (cd "$folder" && own_apt download "$package/$suite" && dpkg-deb -x linux-image-*.deb unpacked && rm linux-image-*.deb)
  version=$(ls "$folder/unpacked/lib/modules" 2> /dev/null || ls "$folder/unpacked/usr/lib/modules")
  [ -d "$folder/unpacked/lib" ] || ln -s usr/lib "$folder/unpacked/lib"
  depmod -b "$folder/unpacked" "$version"
  cp "$folder/unpacked/boot/vmlinuz-$version" "$folder/vmlinuz"
  for module in virtio_pci virtio_mmio virtio_blk ext4 virtio_rng; do
    modprobe -d "$folder/unpacked" -S "$version" --show-depends "$module" 2> /dev/null || true
  done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r path; do
    case $path in
      *.xz) xz -dc "$path" > "$folder/initrd.d/modules/$(basename "$path" .xz)" ;;
      *) cp "$path" "$folder/initrd.d/modules/" ;;
    esac
    basename "$path" .xz >> "$folder/initrd.d/modules/order"
  done
  cp "$BASE/system/bin/busybox" "$folder/initrd.d/bin/busybox"
  cat > "$folder/initrd.d/init" <<'INIT'
#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
while read module; do busybox insmod /modules/$module; done < /modules/order
for second in 1 2 3 4 5 6 7 8 9; do test -b /dev/vda && break; busybox sleep 1; done
busybox mount -t ext4 /dev/vda /system && exec busybox switch_root /system /bin/bash /init.sh
busybox poweroff -f
INIT
  chmod +x "$folder/initrd.d/init"
  (cd "$folder/initrd.d" && find . | cpio --quiet -o -H newc | gzip -1) > "$folder/initrd.new"
  rm -rf "$folder/unpacked" "$folder/initrd.d"
  mv "$folder/initrd.new" "$folder/initrd"
}

apt_depends() { own_apt -s install "$1" 2> /dev/null | awk '/^Inst linux-image-[0-9]/ {print $2; exit}'; }

build_disk() {
  cat > "$BASE/system/init.sh" <<'INIT'
#!/bin/bash
# The first process of the guest: unpack the sources from the second disk, try them, write what was found to the third.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount() { busybox mount "$@"; }
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm && mount -t devpts devpts /dev/pts && mount -t tmpfs shm /dev/shm && mount -t tmpfs tmp /tmp && chmod 1777 /tmp
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do ln -sfn "${link#*:}" "/dev/${link%%:*}"; done
mount -t securityfs security /sys/kernel/security
busybox ifconfig lo up
chmod 666 /dev/null
busybox tar -xf /dev/vdb -C /src
cd /src && bash scripts/emulated_guest.sh > /dev/console 2>&1
busybox tar -cf /dev/vdc -C /results .
sync
busybox poweroff -f
INIT
  rm -f "$BASE/disk.img"
  truncate -s 3G "$BASE/disk.img"
  mke2fs -q -t ext4 -O ^orphan_file,^metadata_csum_seed -d "$BASE/system" "$BASE/disk.img"
}

run_guest() {
  local kernel=$1 folder=$BASE/results-$1 machine=${MACHINE[$ARCH]} emulator console
  rm -rf "$folder"; mkdir -p "$folder"
  case $ARCH in
    arm64) emulator=(qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on); console=ttyAMA0 ;;
    amd64) emulator=(qemu-system-x86_64 -M q35 -cpu max); console=ttyS0 ;;
  esac
  git ls-files -z --cached --others --exclude-standard src tests scripts pyproject.toml docs schemas README.md SECURITY.md | tar --null -T - -cf "$folder/sources"
  truncate -s 64M "$folder/out"
  nice -n 15 timeout 5400 "${emulator[@]}" -accel tcg,thread=multi -smp 2 -m 3072 -nographic -no-reboot -nic none \
    -kernel "$BASE/kernel-$kernel/vmlinuz" -initrd "$BASE/kernel-$kernel/initrd" \
    -append "console=$console quiet panic=-1 no_timer_check ${APPEND:-} sonde.only=${ONLY:-all}" \
    -drive "file=$BASE/disk.img,format=raw,if=virtio,snapshot=on" \
    -drive "file=$folder/sources,format=raw,if=virtio,readonly=on" \
    -drive "file=$folder/out,format=raw,if=virtio" > "$folder/console.log" 2>&1 < /dev/null || true
  tar -xf "$folder/out" -C "$folder" && rm "$folder/out" "$folder/sources" || echo "no results; see $folder/console.log"
}

install_tools
read_sources
build_system
install_wheels
build_disk
failed=0
for kernel in "$@"; do
  fetch_kernel "$kernel"
  [ "${ONLY:-}" = nothing ] && continue
  run_guest "$kernel"
  echo "== $ARCH, kernel $kernel"
  cat "$BASE/results-$kernel"/{kernel,summary} || failed=1
  grep -E '^(kernel|layers|missing|untrusted)' "$BASE/results-$kernel/doctor.log" || true  # for docs/sandbox.md
  ! grep -q '^FAILED' "$BASE/results-$kernel/summary" || failed=1
done
exit $failed
