# shellcheck shell=bash
# Builds the pinned tools from the Go module registry into the cache, once for each version.
#
# A build is the folder $CACHE/build/TOOL-VERSION-KEY; the key covers all that goes into it. Each binary
# is built beside its place and moved there, so an interrupted build never counts and the rest is kept.

build_dir() {
  local tool=$1 key
  key=$({
    cat "$CLUSTER_HOME/tools/$tool/go.mod" "$CLUSTER_HOME/tools/$tool/go.sum"
    tool_commands "$tool"
    tool_ldflags "$tool"
    uname -m
  } | sha256sum)
  echo "$CACHE/build/$tool-$(tool_version "$tool")-${key:0:12}"
}

# is_built TOOL: everything of it is in the cache.
is_built() {
  local dir binary _
  dir=$(build_dir "$1")
  while read -r binary _; do
    [ -x "$dir/$binary" ] || return 1
  done < <(tool_commands "$1")
  [ -z "$(tool_data "$1")" ] || [ -d "$dir/data" ]
}

# build TOOL…: those that are missing, a timed part each.
build() {
  local tool megabytes=0 missing=()
  for tool in "$@"; do is_built "$tool" || missing+=("$tool"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  require_go
  for tool in "${missing[@]}"; do megabytes=$((megabytes + $(tool_megabytes "$tool"))); done
  require_disk "$(go env GOCACHE)" "$megabytes" "to build ${missing[*]}" 'GOCACHE and GOMODCACHE'
  require_disk "$CACHE" $((megabytes / 8)) "for what is built" XDG_CACHE_HOME
  mkdir -p "$CACHE/build" "$CACHE/log"
  lock "$CACHE/build/.lock" "build"
  for tool in "${missing[@]}"; do
    part "build $tool $(tool_version "$tool")" build_tool "$tool"
  done
}

build_tool() {
  local tool=$1 dir log binary package packages
  dir=$(build_dir "$tool")
  log=$CACHE/log/build-$tool.log
  mkdir -p "$dir"
  : >"$log"
  check_pin "$tool"
  doing "fetching modules"
  mapfile -t packages < <(tool_commands "$tool" | cut -d' ' -f2)
  retry go_in "$tool" list -deps "${packages[@]}" >/dev/null 2>>"$log" || build_failed "$tool" "$log"
  while read -r binary package; do
    [ ! -x "$dir/$binary" ] || continue
    doing "compiling $binary"
    go_in "$tool" build -trimpath -ldflags "$(tool_ldflags "$tool")" -o "$dir/.$binary.part" "$package" \
      >>"$log" 2>&1 || build_failed "$tool" "$log"
    mv "$dir/.$binary.part" "$dir/$binary"
  done < <(tool_commands "$tool")
  [ -z "$(tool_data "$tool")" ] || copy_data "$tool" "$dir"
}

# go_in TOOL ARGS…: the go command in the tool's own module, blind to the user's Go settings.
go_in() {
  local tool=$1
  shift
  (
    cd "$CLUSTER_HOME/tools/$tool" || exit
    exec env CGO_ENABLED=0 GOFLAGS='-mod=readonly -buildvcs=false' GOWORK=off go "$@"
  )
}

build_failed() {
  tail -n 15 "$2" >&2
  die "could not build $1 $(tool_version "$1")" \
    "The last lines of its log are above; all of it is in $2" \
    "A failed download is often gone on the next try: run the same command again."
}

# A version that was changed in versions.env alone would quietly build the old one.
check_pin() {
  grep -qE "(^|[[:space:]])$(tool_module "$1") $(tool_version "$1")([[:space:]]|\$)" "$CLUSTER_HOME/tools/$1/go.mod" ||
    die "versions.env pins $1 $(tool_version "$1"), tools/$1/go.mod does not" \
      "Next: $CLUSTER_HOME/tools/pin $1"
}

copy_data() {
  local tool=$1 dir=$2 source folder
  source=$(go_in "$tool" list -m -f '{{.Dir}}' "$(tool_module "$tool")")
  rm -rf "$dir/.data.part"
  mkdir "$dir/.data.part"
  for folder in $(tool_data "$tool"); do cp -r "$source/$folder" "$dir/.data.part/"; done
  chmod -R u+w "$dir/.data.part" # modules are read-only
  mv -T "$dir/.data.part" "$dir/data"
}
