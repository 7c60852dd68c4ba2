# shellcheck shell=bash
# Whose a name on this machine is. $REGISTER notes where the cluster NAME keeps its state, and what `up` made
# on the host; what is not noted there, or marked in the state folder itself, is never removed.

REGISTER=/run/kickstand-cluster/$NAME

register() {
  mkdir -p "$REGISTER" "$STATE"
  echo "$STATE" >"$REGISTER/state"
  echo "A Kickstand test cluster. 'tests/cluster/cluster down' removes this folder." >"$STATE/.cluster"
}

# made THING: noted before it is made, so that an interrupted `up` leaves nothing unknown.
made() { echo "$1" >>"$REGISTER/made"; }
was_made() { grep -qxF "$1" "$REGISTER/made" 2>/dev/null; }

# Makes a folder of the host, noting each level that was not there: in the state, since folders outlive a reboot
# and the register does not.
make_host_dir() {
  [ ! -d "$1" ] || return 0
  make_host_dir "$(dirname "$1")"
  echo "$1" >>"$STATE/.folders"
  mkdir "$1"
}

# Anything of this cluster, running or left behind.
is_registered() { [ -e "$REGISTER/state" ] || [ -e "$STATE/.cluster" ]; }

# Refuses to meet another cluster under this name.
check_owner() {
  local other
  other=$(cat "$REGISTER/state" 2>/dev/null) || return 0
  [ "$other" = "$STATE" ] ||
    die "the cluster '$NAME' of this machine is in $other, not in $STATE" \
      "Next: KICKSTAND_CLUSTER_DIR=$other for that one, KICKSTAND_CLUSTER_NAME=… for another beside it."
}

# Refuses to take over what others made.
check_free() {
  [ ! -e "$NETNS" ] ||
    die "a network namespace named '$NAME' is there already, and no cluster of ours made it" \
      "Next: KICKSTAND_CLUSTER_NAME=another-name $0 up, or, if nothing needs it: ip netns del $NAME"
  ! cgroup_exists ||
    die "a cgroup named '$NAME' is there already, and no cluster of ours made it" \
      "Next: KICKSTAND_CLUSTER_NAME=another-name $0 up"
  [ ! -d "$STATE" ] || [ -z "$(ls -A "$STATE")" ] ||
    die "$STATE is not empty, and no cluster's state" "Next: KICKSTAND_CLUSTER_DIR=another-folder $0 up"
}

unregister() {
  folders_remove
  # No mount is below it any more; were there one, --one-file-system would stop at it.
  if [ -d "$STATE" ]; then
    find "$STATE" -mindepth 1 -maxdepth 1 -exec rm -rf --one-file-system -- {} +
    rmdir "$STATE" 2>/dev/null || true # a mount point of the user's stays
  fi
  rm -rf "$REGISTER"
  rmdir "${REGISTER%/*}" 2>/dev/null || true
}

# The last cluster of the machine removes them: to take a folder away would end another's mounts on it.
folders_remove() {
  local folder other
  [ -e "$STATE/.folders" ] || return 0
  for other in "${REGISTER%/*}"/*/state; do
    if [ "$other" != "$REGISTER/state" ] && [ -e "$other" ]; then
      cat "$STATE/.folders" >>"$(cat "$other")/.folders"
      return
    fi
  done
  # Deepest first. One that is not empty is somebody else's by now.
  while read -r folder; do rmdir "$folder" 2>/dev/null || true; done < <(tac "$STATE/.folders")
}
