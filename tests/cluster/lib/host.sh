# shellcheck shell=bash
# What the machine must have, and clear words when it has not.

require_root() {
  [ "$(id -u)" = 0 ] ||
    die "'$1' needs root: it uses namespaces, mounts and cgroups" "Next: sudo $0 $1"
}

require_arch() {
  case $(uname -sm) in
  'Linux x86_64' | 'Linux aarch64') ;;
  *) die "this machine is $(uname -sm)" "The cluster runs on Linux on x86_64 (and, untested, aarch64)." ;;
  esac
}

# Where Debian and others keep the CNI plugins.
cni_bin() {
  local dir
  for dir in /usr/lib/cni /opt/cni/bin; do
    if [ -x "$dir/ptp" ]; then echo "$dir" && return; fi
  done
}

# Debian packages, as "PACKAGE TEST" lines: a test that fails says the package is missing.
# `run` is what a cluster needs to run, `images` what building the base images needs, `wheels` what Envoy comes by.
packages() {
  case $1 in
  run)
    cat <<'L'
runc command -v runc
containernetworking-plugins [ -n "$(cni_bin)" ]
iptables command -v iptables-restore
conntrack command -v conntrack
iproute2 command -v ip
openssl command -v openssl
util-linux command -v nsenter
mount command -v mount
L
    ;;
  images)
    cat <<'L'
busybox-static [ -x /bin/busybox ] && ! grep -qa /lib/ld- <(head -c 4096 /bin/busybox)
buildah command -v buildah
gcc command -v gcc
libc6-dev [ -n "$(find /usr/lib -name libc.a -print -quit)" ]
L
    ;;
  wheels) echo "python3-pip python3 -m pip --version" ;;
  esac
}

# missing_packages SET…: the names of those that are not there.
missing_packages() {
  local set package test
  for set in "$@"; do
    while read -r package test; do
      eval "$test" >/dev/null 2>&1 || echo "$package"
    done < <(packages "$set")
  done
}

require_packages() {
  local missing
  missing=$(missing_packages "$@" | tr '\n' ' ')
  missing=${missing% }
  [ -n "$missing" ] || return 0
  if [ "${KICKSTAND_APT:-}" = 1 ]; then
    install_packages "$missing"
    return
  fi
  die "missing on this machine: $missing" \
    "Next: apt-get install -y $missing" \
    "  or: $0 deps            (which does just that)" \
    "  or: KICKSTAND_APT=1    in the environment, and 'up' installs what it misses"
}

# install_packages "NAME NAME…"
install_packages() {
  local log names
  read -ra names <<<"$1"
  command -v apt-get >/dev/null ||
    die "no apt-get here to install: $1" "Next: install the same programs with this system's package manager."
  log=$(mktemp)
  doing "apt-get install $1"
  export DEBIAN_FRONTEND=noninteractive
  if ! { retry apt-get update -q && retry apt-get install -y -q --no-install-recommends "${names[@]}"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    die "apt-get could not install: $1" "Its last lines are above; all of them are in $log"
  fi
  rm -f "$log"
}

require_go() {
  local found
  command -v go >/dev/null ||
    die "Go is not installed (or not in root's PATH)" \
      "The binaries of the cluster are built from their Go modules: install Go $GO_MINIMUM or newer." \
      "With sudo, keep the PATH: sudo env PATH=\"\$PATH\" $0 up"
  found=$(GOTOOLCHAIN=local go env GOVERSION)
  found=${found#go}
  [ "$(printf '%s\n' "$GO_MINIMUM" "$found" | sort -V | head -n 1)" = "$GO_MINIMUM" ] ||
    die "Go is $found at $(command -v go)" "The pinned modules need Go $GO_MINIMUM or newer."
}

# require_disk DIR MEGABYTES WHY SETTING
require_disk() {
  local dir=$1 free
  while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
  free=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] ||
    die "too little space below $1: $free MB free, $2 MB needed $3" \
      "Next: free some, or point $4 at a larger disk."
}

# Layers are overlay mounts, and those do not stack on the root of a container.
require_filesystem() {
  local dir=$STATE
  while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
  [ "$(stat -fc %T "$dir")" != overlayfs ] ||
    die "$dir is on an overlay file system, where containerd cannot mount its layers" \
      "Next: set KICKSTAND_CLUSTER_DIR to a folder on a disk or a volume."
}

deps() {
  local missing
  require_root deps
  missing=$(missing_packages run images wheels | tr '\n' ' ')
  missing=${missing% }
  if [ -z "$missing" ]; then
    say "all Debian packages are there"
  else
    part "install $missing" install_packages "$missing"
  fi
}
