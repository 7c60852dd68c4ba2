# shellcheck shell=bash
# Looking into a cluster, and working with it.

require_up() {
  require_root "$1"
  check_owner
  daemon_pid apiserver >/dev/null ||
    die "the cluster '$NAME' does not run" "Next: $0 up"
}

# enter COMMAND…: becomes it, in the cluster's network, with kubectl and its credentials at hand.
# Not `ip netns exec`: that mounts /sys anew and hides the cgroups.
enter() {
  lock_forget # or what is run would hold it
  on_exit     # no trap outlives exec
  exec "${UNPROXIED[@]}" KUBECONFIG="$STATE/kubeconfig" PATH="$STATE/bin:$PATH" nsenter --net="$NETNS" "$@"
}

helm_enter() {
  build helm
  enter "$(build_dir helm)/helm" "$@"
}

helm_path() {
  build helm
  echo "$(build_dir helm)/helm"
}

ctr_enter() {
  export CONTAINERD_ADDRESS=$CONTAINERD_SOCKET CONTAINERD_NAMESPACE=${CONTAINERD_NAMESPACE:-k8s.io}
  exec "$STATE/bin/ctr" "$@"
}

logs() {
  local follow='' path='' lines=50 name
  while [ $# -gt 0 ]; do
    case $1 in
    -f | --follow) follow=-F ;;
    --path) path=1 ;;
    -n) lines=${2:-50} && shift ;;
    -*) die "logs: unknown option $1" "Next: $0 --help" ;;
    *) break ;;
    esac
    shift
  done
  if [ $# = 0 ]; then
    for name in "${DAEMONS[@]}" audit; do echo "$name $(log_file "$name")"; done | column -t
    return
  fi
  [[ " ${DAEMONS[*]} audit " == *" $1 "* ]] || die "no log named '$1'" "There are: ${DAEMONS[*]} audit"
  [ -e "$(log_file "$1")" ] || die "no log at $(log_file "$1")" "Next: $0 up"
  if [ -n "$path" ]; then log_file "$1"; else tail $follow -n "$lines" "$(log_file "$1")"; fi
}

print_kubeconfig() {
  [ -e "$STATE/kubeconfig" ] || die "the cluster '$NAME' does not run" "Next: $0 up"
  echo "$STATE/kubeconfig"
}

# status [-o json]
status() {
  local found daemon pid addon
  require_root status
  check_owner
  found=$(condition)
  if [ "${1:-}" = -o ] && [ "${2:-}" = json ]; then
    status_json "$found"
    return
  fi
  [ $# = 0 ] || die "status: unknown option $1" "It takes nothing, or -o json."
  printf 'cluster %s: %s\n' "$NAME" "$found"
  [ "$found" != absent ] || return 0
  printf '%-20s %s\n' state "$STATE" kubeconfig "$STATE/kubeconfig"
  for daemon in "${DAEMONS[@]}"; do
    pid=$(daemon_pid "$daemon") || pid=
    printf '%-20s %s\n' "$daemon" "${pid:+runs, pid }${pid:-does not run}"
  done
  for addon in "${ADDONS[@]}"; do printf '%-20s %s\n' "$addon" "$(addon_state "$addon")"; done
}

addon_state() {
  if "$1_ready" >/dev/null 2>&1; then
    echo ready
  elif [ -e "$STATE/addons/$1" ]; then
    echo 'not ready'
  else
    echo 'not installed'
  fi
}

status_json() {
  local daemon addon separator=''
  printf '{"name":"%s","state":"%s","condition":"%s","healthy":%s,' "$NAME" "$STATE" "$1" "$([ "$1" = healthy ] && echo true || echo false)"
  printf '"kubeconfig":"%s","kubernetes":"%s","cgroup":"%s","daemons":{' "$STATE/kubeconfig" "$KUBERNETES_VERSION" "$(cgroup_mode)"
  for daemon in "${DAEMONS[@]}"; do
    printf '%s"%s":%s' "$separator" "$daemon" "$(daemon_pid "$daemon" || echo null)"
    separator=,
  done
  printf '},"addons":{'
  separator=
  for addon in "${ADDONS[@]}"; do
    printf '%s"%s":%s' "$separator" "$addon" "$([ "$(addon_state "$addon")" = ready ] && echo true || echo false)"
    separator=,
  done
  printf '}}\n'
}

versions() {
  local tool
  for tool in "${TOOLS[@]}"; do
    printf '%-12s %-10s %s\n' "$tool" "$(tool_version "$tool")" "$(is_built "$tool" && echo 'built' || echo 'not built yet')"
  done
  printf '%-12s %s\n' go "$(go env GOVERSION 2>/dev/null || echo 'not installed')" \
    runc "$(runc --version 2>/dev/null | sed -n '1s/runc version //p')" \
    cgroup "$(cgroup_mode)"
}
