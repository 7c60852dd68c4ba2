# shellcheck shell=bash
# The cluster's network namespace and mount namespace.
#
# Network: everything listens in there, so no port of the host is taken and nothing leaves the machine.
# Mounts: layers and volumes are mounted in there, so the host's list stays short, they all vanish with the
# last process, and removing the state folder can never reach into a volume of a pod.

NETNS=/run/netns/$NAME
MOUNTNS=$STATE/ns/mnt

# Folders that programs insist on; each is a folder of the state directory within the mount namespace.
SHADOWED=(/run/containerd /var/lib/cni /var/lib/kubelet /var/log/containers /opt/containerd)

# What a kubelet sets for the whole kernel. It is shown these values in there, and so leaves the host's alone.
KERNEL_SETTINGS=(vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000)

network_create() {
  made "$NETNS"
  ip netns add "$NAME"
  in_network ip link set lo up
  # The node's address and default route: a pair, since not every kernel has dummy links.
  in_network ip link add node0 type veth peer name node0-peer
  in_network ip address add "$NODE_IP/24" dev node0
  in_network ip link set node0 up
  in_network ip link set node0-peer up
  in_network ip route add default dev node0 src "$NODE_IP"
  in_network sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet'
}

mounts_create() {
  local path setting shadowed=()
  mkdir -p "$STATE/ns"
  # The file that keeps the namespace alive must lie on a mount that nobody shares.
  mount --bind "$STATE/ns" "$STATE/ns"
  mount --make-private "$STATE/ns"
  : >"$MOUNTNS"
  for path in "${SHADOWED[@]}"; do
    make_host_dir "$path"
    mkdir -p "$STATE/host$path"
    shadowed+=("$path")
  done
  for setting in "${KERNEL_SETTINGS[@]}"; do
    path=/proc/sys/${setting%=*}
    [ -e "$path" ] || continue
    mkdir -p "$STATE/host${path%/*}"
    echo "${setting#*=}" >"$STATE/host$path"
    shadowed+=("$path")
  done
  # slave: what the host unmounts goes away in here too. shared: for pods that ask for mount propagation.
  # shellcheck disable=SC2016
  unshare --mount="$MOUNTNS" --propagation slave bash -euc '
    state=$1; shift
    mount --make-rshared /
    for path; do mount --bind "$state/host$path" "$path"; done' _ "$STATE" "${shadowed[@]}"
}

in_network() { nsenter --net="$NETNS" "$@"; }

# Only once no process of the cluster runs.
namespaces_remove() {
  umount "$MOUNTNS" 2>/dev/null || true
  if mountpoint -q "$STATE/ns"; then umount "$STATE/ns"; fi
  if was_made "$NETNS" && [ -e "$NETNS" ]; then ip netns del "$NAME"; fi
  # `ip netns add` mounts the folder on itself, and never takes that back. It makes it again when it needs it.
  if [ -d /run/netns ] && [ -z "$(ls -A /run/netns)" ]; then
    umount /run/netns 2>/dev/null || true
    rmdir /run/netns
  fi
}
