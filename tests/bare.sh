#!/bin/sh
# Runs a command in a bare Debian with a fresh clone of HEAD, to see what a newcomer sees: bare.sh make test
# SUITE selects the system: bookworm (Debian 12, Python 3.11.2; the default) or trixie (Debian 13, Python 3.13). It has pip and venv, make and
# git, and nothing else: no /etc/hosts, no Go, no Postgres, no containerd. With CI=true, it uses the uv cache of this machine.
# DIST is a folder that the command finds, read-only, in /src/dist. Needs root and debootstrap. The base system is kept in the cache (400 MB); each run starts from it and leaves nothing.
set -eu
[ $# -gt 0 ] || { echo "usage: bare.sh COMMAND..." >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "bare.sh needs root: it mounts file systems and calls chroot" >&2; exit 1; }
suite=${SUITE:-bookworm}
case $suite in
  bookworm | trixie) ;;
  *) echo "SUITE is $suite; use bookworm or trixie" >&2; exit 2 ;;
esac
source=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
shared=$(realpath -m "${RATCHET_SHARED:-$source/../shared}")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ratchet/bare
base=$cache/$suite
if [ ! -d "$base" ]; then
  command -v debootstrap >/dev/null || { echo "debootstrap is not installed: apt-get install debootstrap" >&2; exit 1; }
  mkdir -p "$cache"
  rm -rf "$base.partial"
  debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-pip,python3-venv "$suite" "$base.partial" \
    "${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)}" >"$cache/debootstrap.log" 2>&1 ||
    { tail -n 3 "$cache/debootstrap.log" >&2; exit 1; }
  mv "$base.partial" "$base"
fi
run=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf "$run"' EXIT
mkdir "$run/upper" "$run/work" "$run/root"
packages=""
[ "${CI:-}" != true ] || { packages=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}; mkdir -p "$packages"; }
dist=${DIST:+$(realpath "$DIST")}
export base run source shared packages dist
# All mounts live in a mount namespace of their own and end with it; all processes live in a process namespace and end with it.
unshare --mount --propagation private --pid --fork --kill-child sh -eu -c '
  root=$run/root
  mount -t overlay overlay -o "lowerdir=$base,upperdir=$run/upper,workdir=$run/work" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/tmp"
  # How this machine reaches its package index: name servers, certificates, pip.conf.
  for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs /usr/local/share/ca-certificates; do
    [ ! -e "$file" ] || { rm -rf "$root$file"; mkdir -p "$(dirname "$root$file")"; cp -rL "$file" "$root$file"; }
  done
  mkdir -p "$root/src/shared"
  git clone -q "$source" "$root/src/ratchet"
  [ ! -d "$shared" ] || mount --bind -o ro "$shared" "$root/src/shared"
  [ -z "$dist" ] || { mkdir "$root/src/dist"; mount --bind -o ro "$dist" "$root/src/dist"; }
  home=$root/root
  [ -z "$packages" ] || { mkdir -p "$home/.cache/uv"; mount --bind "$packages" "$home/.cache/uv"; }
  settings=$(env | grep -E "^(PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|DEFAULT_TIMEOUT)|UV_(DEFAULT_INDEX|INDEX_URL)|SSL_CERT_[A-Z]+|REQUESTS_CA_BUNDLE|[a-zA-Z]+_(proxy|PROXY))=" || true)
  exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb $settings \
    chroot "$root" sh -c "cd /src/ratchet && exec \"\$@\"" sh "$@"
' sh "$@" </dev/null
