#!/usr/bin/env bash
# Lays down the nop image's root: nop, and a link to it for every line of src/pod/nop-names.txt.
#
#   images/stage-nop.sh [NOP [FOLDER]]      default: dist/nop dist/nop-root
set -euo pipefail
cd "$(dirname "$0")/.."
nop=${1:-dist/nop}
root=${2:-dist/nop-root}
root=${root%/}
# Those of FOLDERS in src/pod/nop.rs; a test compares the two.
folders=(/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin)

[ -f "$nop" ] || {
  echo "$0: there is no $nop. Next: make build" >&2
  exit 1
}
if [ -e "$root" ] && [ ! -L "$root/bin/sh" ]; then
  echo "$0: $root is there, but is not what this script made: it would be deleted. Next: remove it, or name another folder" >&2
  exit 1
fi
umask 022
# Beside its place, then moved: one that was interrupted leaves nothing half done.
staging=$(mktemp -d "$root.XXXXXX")
trap 'rm -rf "$staging"' EXIT
chmod 0755 "$staging"
install -m 0755 "$nop" "$staging/nop"

link() {
  mkdir -p "$staging${1%/*}"
  # Without -f: two lines for one path are a mistake in the list.
  ln -s /nop "$staging$1"
}

while IFS= read -r line || [ -n "$line" ]; do
  line=${line%%#*}
  line=${line//[[:space:]]/}
  case $line in
  '') ;;
  /*) link "$line" ;;
  *) for folder in "${folders[@]}"; do link "$folder/$line"; done ;;
  esac
done <src/pod/nop-names.txt

rm -rf "$root"
mv "$staging" "$root"
