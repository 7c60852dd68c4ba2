# shellcheck shell=bash
# Settings, messages and timed parts: what every other file here builds on.

CLUSTER_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../versions.env
. "$CLUSTER_HOME/versions.env"
# Numbers with a point in the output of every tool, whatever the user's locale.
export LC_ALL=C

# The name of the network namespace, the cgroup and the pod network.
NAME=${KICKSTAND_CLUSTER_NAME:-kickstand}
STATE=${KICKSTAND_CLUSTER_DIR:-/var/lib/$NAME-cluster}
STATE=${STATE%/}
CACHE=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kickstand/cluster
NODE=node1
NODE_IP=10.99.0.1
# The first address of the service range 10.96.0.0/16 is the API server's own.
API_SERVICE_IP=10.96.0.1

say() { printf '%s\n' "$*" >&2; }

# The status of a failure that has been explained already, so that it is not once more on the way out.
EXPLAINED=70

# die WHAT [NEXT…]: what is wrong, then one line each on its cause or on what to do.
die() {
  printf 'cluster: %s\n' "$1" >&2
  shift
  [ $# = 0 ] || printf '  %s\n' "$@" >&2
  exit "$EXPLAINED"
}

check_settings() {
  [[ $NAME =~ ^[a-z][a-z0-9-]{0,30}$ ]] ||
    die "KICKSTAND_CLUSTER_NAME is '$NAME'" \
      "It names a network namespace and a cgroup: use at most 31 of a-z, 0-9 and '-', a letter first."
  # The kubelet's sockets lie up to 35 characters below it, and a socket's path may have 107.
  [[ $STATE =~ ^/[A-Za-z0-9._/-]{1,63}$ ]] ||
    die "KICKSTAND_CLUSTER_DIR is '$STATE'" \
      "It is written into configuration files and socket paths: use an absolute path" \
      "of at most 64 letters, digits and the characters . _ / -"
}

# retry COMMAND…: registries hiccup now and then, so three tries.
retry() {
  local try
  for try in 1 2 3; do
    if "$@"; then return 0; fi
    [ "$try" = 3 ] || { say "  … failed (try $try of 3), once more: $*" && sleep $((try * 3)); }
  done
  return 1
}

# render FILE: a template of config/ with its @NAME@ words filled in.
render() {
  sed -e "s#@STATE@#$STATE#g" -e "s#@NAME@#$NAME#g" -e "s#@CNI_BIN@#$(cni_bin)#g" \
    "$CLUSTER_HOME/config/$1"
}

# --- timed parts ---------------------------------------------------------------------------------

now_ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }

SCRATCH=
# scratch: a folder $SCRATCH, gone when this script ends. Not in a subshell, whose variables are lost.
scratch() { [ -n "$SCRATCH" ] || SCRATCH=$(mktemp -d); }

PART=
PART_DOING=
PART_TICKER=

# doing TEXT: what the sign of life of a long part says.
doing() { [ -z "$PART_DOING" ] || printf '%s' "$*" >"$PART_DOING"; }

# part NAME COMMAND…: runs it, then prints one line with the time it took.
# Never call it in a condition: bash would switch `set -e` off for all that it runs.
part() {
  local start
  PART=$1
  shift
  start=$(now_ms)
  ticker_start
  "$@"
  ticker_stop
  printf '  %-34s %7s s\n' "$PART" "$(seconds $(($(now_ms) - start)))" >&2
  PART=
}

# The ticker holds none of our files open, so that `cluster up | tail` ends when up does.
ticker_start() {
  local parent=$$
  scratch
  PART_DOING=$SCRATCH/doing
  : >"$PART_DOING"
  (
    trap - EXIT ERR
    lock_forget
    elapsed=0
    while sleep 1 >/dev/null 2>&1 && kill -0 "$parent" 2>/dev/null; do
      elapsed=$((elapsed + 1))
      if [ $elapsed = 5 ] || [ $((elapsed % 20)) = 0 ]; then
        printf '  … %s: %s s so far%s\n' "$PART" "$elapsed" "$(sed 's/^/, /' "$PART_DOING")" >&2
      fi
    done
  ) </dev/null >/dev/null &
  PART_TICKER=$!
}

ticker_stop() {
  [ -n "$PART_TICKER" ] || return 0
  kill "$PART_TICKER" 2>/dev/null || true
  wait "$PART_TICKER" 2>/dev/null || true
  PART_TICKER=
  PART_DOING=
}

# --- one up, down or build at a time ---------------------------------------------------------------

LOCK_FDS=()

# lock FILE WHAT: held until this script ends.
lock() {
  local fd
  exec {fd}>"$1"
  if ! flock -n "$fd"; then
    say "cluster: another $2 is running; waiting for it"
    flock "$fd"
  fi
  LOCK_FDS+=("$fd")
}

# For what outlives this script: a daemon that inherited a lock would hold it for ever.
lock_forget() {
  local fd
  for fd in "${LOCK_FDS[@]}"; do exec {fd}>&-; done
}

# --- the end ---------------------------------------------------------------------------------------

on_error() {
  local status=$?
  if [ "$status" != "$EXPLAINED" ]; then
    say "cluster: ${PART:+$PART: }this failed with exit $status: $1 (${BASH_SOURCE[1]##*/}, line $2)"
  fi
  exit "$EXPLAINED"
}

on_exit() {
  local status=$?
  ticker_stop
  [ -z "$SCRATCH" ] || rm -rf "$SCRATCH"
  if [ "$status" = "$EXPLAINED" ]; then exit 1; fi
}

traps() {
  set -E
  trap 'on_error "$BASH_COMMAND" "$LINENO"' ERR
  trap on_exit EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
}
