# shellcheck shell=bash
# up and down.

CORE_TOOLS=(kubernetes etcd containerd)
# Space a running cluster takes at first: its images, unpacked.
STATE_MEGABYTES=2000

cluster_lock() {
  mkdir -p /run/lock
  lock "/run/lock/kickstand-cluster-$NAME.lock" "up or down of '$NAME'"
}

# condition: prints absent, healthy, or what is wrong.
condition() {
  local daemon
  if ! is_registered; then echo absent && return; fi
  for daemon in "${DAEMONS[@]}"; do
    if ! daemon_pid "$daemon" >/dev/null; then echo "$daemon does not run" && return; fi
  done
  # A busy machine may be slow to answer: that is no reason to take a cluster from under somebody's test.
  if ! patiently 30 kubectl get --raw /readyz; then echo "the API server does not answer" && return; fi
  if ! patiently 30 node_ready; then echo "the node is not ready" && return; fi
  echo healthy
}

patiently() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.5
  done
}

# up [ADDON…]
up() {
  local start found tools addons=("$@")
  start=$(now_ms)
  require_root up
  require_arch
  check_owner
  cluster_lock
  found=$(condition)
  if [ "$found" != healthy ]; then
    mapfile -t tools < <(printf '%s\n' "${CORE_TOOLS[@]}" && addons_tools "${addons[@]}")
    say "cluster '$NAME' in $STATE"
    if [ "$found" != absent ]; then
      say "  left from before: $found"
      part 'clear what was left' clear_all
    fi
    check_free
    part 'check this machine' check_machine
    build "${tools[@]}"
    prepare_images "${addons[@]}"
    start_all "${addons[@]}"
  elif [ "$(stamp)" != "$(cat "$STATE/stamp")" ]; then
    say "cluster: it runs with other pins or settings than this checkout has: 'down' and 'up' bring those"
  fi
  install_addons "${addons[@]}"
  say "cluster '$NAME' is up, $(seconds $(($(now_ms) - start))) s. Try: $0 kubectl get pods -A"
}

check_machine() {
  require_packages run
  require_filesystem
  require_disk "$STATE" "$STATE_MEGABYTES" "for a running cluster" KICKSTAND_CLUSTER_DIR
  # Built in here, a module elsewhere; if it is neither, what needs it says so.
  modprobe -a overlay nf_conntrack veth 2>/dev/null || true
}

prepare_images() {
  local images
  mapfile -t images < <(base_images "$@")
  images_build "${images[@]}"
}

base_images() { printf '%s\n' "${CORE_IMAGES[@]}" && addons_images "$@"; }

# What a cluster is made of, in one word.
stamp() {
  local tool
  {
    for tool in "${CORE_TOOLS[@]}"; do build_dir "$tool"; done
    cat "$CLUSTER_HOME"/config/*
    echo "${KICKSTAND_APISERVER_ARGS:-}"
  } | sha256sum | cut -c 1-12
}

# start_all [ADDON…]: loads their images too, while the API server gets ready.
start_all() {
  local images
  mapfile -t images < <(base_images "$@")
  part 'namespaces and cgroup' prepare_host
  part 'certificates' pki_create
  etcd_start
  containerd_start
  apiserver_start
  part 'containerd' containerd_wait
  part 'load images' images_load "${images[@]}"
  part 'etcd and API server' apiserver_wait
  managers_start
  kubelet_start
  proxy_start
  part 'node' node_wait
  stamp >"$STATE/stamp"
}

prepare_host() {
  local tool binary _
  register
  mkdir -p "$STATE"/{bin,config/cni,log,pids,run}
  # Run by this path, so that a command line says whose it is.
  for tool in "${CORE_TOOLS[@]}"; do
    while read -r binary _; do
      ln -s "$(build_dir "$tool")/$binary" "$STATE/bin/$binary"
    done < <(tool_commands "$tool")
  done
  cgroup_create
  network_create
  mounts_create
}

# Addons are built here too, in case the cluster was up without them.
install_addons() {
  local addon tools
  for addon in "$@"; do
    if "${addon}_ready" >/dev/null 2>&1; then continue; fi
    mapfile -t tools < <("${addon}_tools")
    build "${tools[@]}"
    prepare_images "$addon"
    part "install $addon" addon_install "$addon"
  done
}

down() {
  require_root down
  check_owner
  cluster_lock
  if ! is_registered; then
    say "cluster '$NAME' is not there: nothing to do"
    return
  fi
  part 'take the cluster down' clear_all
}

clear_all() {
  end_processes
  namespaces_remove
  cgroup_remove
  unregister
}
