# shellcheck shell=bash
# Starting, recognising and ending the cluster's processes.
#
# Only what is provably ours is ever signalled: a process in our cgroup, one that runs a program of our folder, or one
# with a recorded id, start time and boot. An id alone proves nothing: the kernel hands it out again.

DAEMONS=(etcd containerd apiserver controller-manager scheduler kubelet proxy)

log_file() { echo "$STATE/log/$1.log"; }

boot_id() { cat /proc/sys/kernel/random/boot_id; }

# start_time PID: in ticks since boot; the 22nd field, counted after the name, which may hold blanks.
start_time() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${stat##*) }"
  echo "${fields[19]}"
}

# daemon NAME BINARY ARGS…: starts it in the cluster's namespaces and cgroup, with an environment of its own
# (a proxy setting of the user's would send the API server's webhook calls out).
daemon() {
  local name=$1 binary=$2
  shift 2
  (
    trap - EXIT ERR
    lock_forget
    cgroup_join "$BASHPID"
    cd /
    exec setsid nsenter --net="$NETNS" --mount="$MOUNTNS" \
      env -i PATH="$STATE/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME="$STATE" \
      "$STATE/bin/$binary" "$@"
  ) </dev/null >>"$(log_file "$name")" 2>&1 &
  echo "$! $(start_time $!) $(boot_id)" >"$STATE/pids/$name"
}

# daemon_pid NAME: its process id if that very process runs.
daemon_pid() {
  local pid start boot
  read -r pid start boot 2>/dev/null <"$STATE/pids/$1" || return 1
  [ "$boot" = "$(boot_id)" ] && [ "$(start_time "$pid")" = "$start" ] && [ "$(process_state "$pid")" != Z ] || return 1
  echo "$pid"
}

process_state() { sed -nE 's/^State:\t(.).*/\1/p' "/proc/$1/status" 2>/dev/null; }

# wait_for SECONDS WHAT DAEMON COMMAND…: until the command succeeds; says what DAEMON last wrote if it does not.
wait_for() {
  local end what=$2 daemon=$3 reason
  end=$((SECONDS + $1))
  doing "waiting for $what"
  shift 3
  while ! "$@" >/dev/null 2>&1; do
    if ! daemon_pid "$daemon" >/dev/null; then
      reason="$daemon has ended"
    elif [ "$SECONDS" -ge "$end" ]; then
      reason="no answer in time"
    else
      sleep 0.1
      continue
    fi
    tail -n 15 "$(log_file "$daemon")" >&2
    die "$what: $reason" "The last lines of $(log_file "$daemon") are above." "Next: $0 down, then $0 up"
  done
}

# Those that are ours wherever they are, should any ever have left our cgroup.
stray_pids() {
  local name pid
  for name in "${DAEMONS[@]}"; do daemon_pid "$name" || true; done
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    if names_us "$pid"; then echo "$pid"; fi
  done
}

# names_us PID: its program is $STATE/bin/…: a daemon of ours, or a shim that our containerd started.
names_us() {
  local argument
  IFS= read -r -d '' argument 2>/dev/null <"/proc/$1/cmdline" || return 1
  [[ $argument == "$STATE/bin/"* ]]
}

# Nothing needs a gentle end: the state goes too. The loop is for what forks meanwhile.
end_processes() {
  local pids
  for _ in {1..100}; do
    pids=$({ cgroup_pids; stray_pids; } | sort -un)
    [ -n "$pids" ] || return 0
    doing "waiting for processes to end: ${pids//$'\n'/ }"
    xargs kill -KILL <<<"$pids" 2>/dev/null || true
    sleep 0.1
  done
  die "processes of the cluster do not end: ${pids//$'\n'/ }" \
    "See 'cat /proc/PID/status' and '/proc/PID/stack': one in state D waits for a disk or a mount."
}
