# shellcheck shell=bash
# The cluster's own cgroup: /NAME/daemons holds what `up` starts (and the shims), /NAME/pods the kubelet's pods.
# All that the cluster runs is in there and nothing else is, so it also says whom `down` may end.

CGROUP_ROOT=/sys/fs/cgroup

# v2: one tree with all controllers. v1 (or hybrid): a tree for each controller.
cgroup_mode() {
  case $(stat -fc %T "$CGROUP_ROOT") in
  cgroup2fs) echo v2 ;;
  *) echo v1 ;;
  esac
}

# The mounted trees; FILESYSTEM is cgroup, cgroup2 or empty for both.
cgroup_trees() {
  awk -v want="${1:-}" -v root="$CGROUP_ROOT" \
    '$3 ~ /^cgroup2?$/ && (want == "" || $3 == want) && index($2, root) == 1 { print $2 }' /proc/self/mounts | sort -u
}

cgroup_create() {
  if [ "$(cgroup_mode)" = v2 ]; then
    cgroup_create_v2
  else
    cgroup_create_v1
  fi
}

# The kubelet refuses a cgroupRoot that one of its controllers' trees lacks.
cgroup_create_v1() {
  local tree dir
  [ -e "$CGROUP_ROOT/pids/cgroup.procs" ] ||
    die "no cgroup v1 tree for 'pids' below $CGROUP_ROOT" "Next: mount it, or boot with cgroup v2."
  while read -r tree; do
    for dir in "$tree/$NAME" "$tree/$NAME/daemons" "$tree/$NAME/pods"; do
      mkdir -p "$dir"
      # A new cpuset is empty, and takes no process until it is told its processors and memory.
      if [ -e "$dir/cpuset.cpus" ]; then
        cat "$dir/../cpuset.cpus" >"$dir/cpuset.cpus"
        cat "$dir/../cpuset.mems" >"$dir/cpuset.mems"
      fi
    done
  done < <(cgroup_trees cgroup)
}

# In v2 a cgroup that hands controllers on holds no process: hence the leaf `daemons` beside `pods`.
cgroup_create_v2() {
  local dir controller
  mkdir -p "$CGROUP_ROOT/$NAME/daemons" "$CGROUP_ROOT/$NAME/pods"
  for dir in "$CGROUP_ROOT" "$CGROUP_ROOT/$NAME" "$CGROUP_ROOT/$NAME/pods"; do
    for controller in cpu cpuset memory pids io hugetlb; do
      grep -qw "$controller" "$dir/cgroup.controllers" || continue
      grep -qw "$controller" "$dir/cgroup.subtree_control" && continue
      echo "+$controller" 2>/dev/null >"$dir/cgroup.subtree_control" ||
        die "cgroup v2: $dir does not hand on the controller '$controller'" \
          "In a container its root cgroup must hold no process of its own. Next: move them into a leaf:" \
          "  mkdir $CGROUP_ROOT/init; xargs -rn1 <$CGROUP_ROOT/cgroup.procs >$CGROUP_ROOT/init/cgroup.procs"
    done
  done
  for controller in cpu cpuset memory pids; do
    grep -qw "$controller" "$CGROUP_ROOT/$NAME/pods/cgroup.controllers" ||
      die "cgroup v2: no controller '$controller' in $CGROUP_ROOT" "The kubelet needs it: enable it for this machine."
  done
}

# The tree whose cgroup.procs names every process of the cluster: runc puts each container into all of them.
cgroup_tracked() {
  if [ "$(cgroup_mode)" = v2 ]; then echo "$CGROUP_ROOT/$NAME"; else echo "$CGROUP_ROOT/pids/$NAME"; fi
}

# cgroup_join PID
cgroup_join() { echo "$1" >"$(cgroup_tracked)/daemons/cgroup.procs"; }

cgroup_pids() {
  local dir
  dir=$(cgroup_tracked)
  find "$dir" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -un || true
}

cgroup_exists() {
  local tree
  while read -r tree; do
    if [ -d "$tree/$NAME" ]; then return 0; fi
  done < <(cgroup_trees)
  return 1
}

# cgroup_remove: the kernel lets go of a cgroup a moment after its last process.
cgroup_remove() {
  local tree
  while read -r tree; do
    for _ in {1..50}; do
      [ -d "$tree/$NAME" ] || break
      find "$tree/$NAME" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
    [ ! -d "$tree/$NAME" ] || say "cluster: could not remove the cgroup $tree/$NAME"
  done < <(cgroup_trees)
}
