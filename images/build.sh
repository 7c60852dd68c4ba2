#!/usr/bin/env bash
# Builds both images with buildah, without a daemon, from what `make build` put into dist/. The same binaries give the
# same images. docker does as well: images/stage-nop.sh, then docker build -f Dockerfile (or Dockerfile.nop) .
set -euo pipefail

usage() {
  cat <<EOF
Usage: images/build.sh [--tag TAG] [--registry REGISTRY]

  --tag TAG             default: dev
  --registry REGISTRY   what stands before the names, default: localhost

Prints the names of the images: REGISTRY/kickstand:TAG and REGISTRY/kickstand-nop:TAG.
EOF
}

die() {
  echo "images/build.sh: $1. Next: $2" >&2
  exit 1
}

tag=dev
registry=localhost
while [ $# -gt 0 ]; do
  case $1 in
  --tag | --registry)
    [ -n "${2:-}" ] || die "$1 needs a value" "images/build.sh --help"
    printf -v "${1#--}" %s "$2"
    shift 2
    ;;
  -h | --help)
    usage
    exit
    ;;
  *) die "no such option: $1" "images/build.sh --help" ;;
  esac
done

cd "$(dirname "$0")/.."
command -v buildah >/dev/null || die "buildah is not installed" "apt-get install buildah, or build the Dockerfiles with docker"
for binary in kickstand nop; do
  [ -x "dist/$binary" ] || die "there is no dist/$binary" "make build"
  # A binary that asks for a loader starts on the machine that built it, and in an empty image never.
  if readelf -l "dist/$binary" 2>/dev/null | grep -q INTERP; then
    die "dist/$binary is not static" "make build"
  fi
done
images/stage-nop.sh

# $1 name, $2 Dockerfile. vfs and chroot need no kernel feature and no user namespace; the timestamp makes it reproducible.
build() {
  buildah --storage-driver vfs bud --quiet --isolation chroot --timestamp 0 --file "$2" --tag "$registry/$1:$tag" . >/dev/null
  echo "$registry/$1:$tag"
}
build kickstand Dockerfile
build kickstand-nop Dockerfile.nop
