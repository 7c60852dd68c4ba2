# shellcheck shell=bash
# Builds images without a daemon, and loads them into the cluster's containerd.
#
# A base image is an archive in the cache, $CACHE/images/NAME-KEY.tar; the key covers all that goes into it.
# Beside it, in NAME-KEY.digest, lies its digest: an image that the cluster has already is not loaded again.

CORE_IMAGES=(pause busybox)

# The name that pods use.
image_reference() {
  case $1 in
  tekton/*) echo "localhost/$1:$TEKTON_VERSION" ;;
  coredns) echo "localhost/$1:$COREDNS_VERSION" ;;
  istio/*) echo "localhost/$1:$ISTIO_VERSION" ;;
  *) echo "localhost/$1:dev" ;;
  esac
}

image_archive() {
  local image=$1 key
  key=$({
    declare -f image_context istio_rootfs images_build_now # how it is built
    cat "$CLUSTER_HOME/images/${image%%/*}"/*
    image_reference "$image"
    case $image in
    busybox) cat /bin/busybox ;;
    tekton/*) build_dir tekton ;;
    coredns) build_dir coredns ;;
    istio/*) build_dir istio ;;
    esac
    if [ "$image" = istio/proxyv2 ]; then build_dir envoy && proxy_host_files | xargs cat; fi
  } | sha256sum)
  echo "$CACHE/images/${image//\//-}-${key:0:12}.tar"
}

# image_context IMAGE FOLDER: puts there what the Dockerfile copies.
image_context() {
  local image=$1 folder=$2 applet command=${1##*/}
  case $image in
  pause) gcc -static -Os -s -Wall -Wextra -Werror -o "$folder/pause" "$CLUSTER_HOME/images/pause/pause.c" ;;
  busybox)
    mkdir -p "$folder/rootfs/"{bin,usr,etc,root,tmp}
    chmod 1777 "$folder/rootfs/tmp"
    cp /bin/busybox "$folder/rootfs/bin/"
    for applet in $(/bin/busybox --list); do
      [ "$applet" = busybox ] || ln -s busybox "$folder/rootfs/bin/$applet"
    done
    # For scripts that say /usr/bin/env and the like.
    ln -s bin "$folder/rootfs/sbin"
    ln -s ../bin "$folder/rootfs/usr/bin"
    ln -s ../bin "$folder/rootfs/usr/sbin"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$folder/rootfs/etc/passwd"
    echo 'root:x:0:' >"$folder/rootfs/etc/group"
    ;;
  tekton/*) cp "$(build_dir tekton)/$command" "$folder/" ;;
  coredns) cp "$(build_dir coredns)/coredns" "$folder/" ;;
  istio/pilot) command=pilot-discovery && istio_rootfs "$command" "$folder/rootfs" ;;
  istio/proxyv2) command=pilot-agent && istio_rootfs "$command" "$folder/rootfs" ;;
  esac
  sed "s#@COMMAND@#$command#g" "$CLUSTER_HOME/images/${image%%/*}/Dockerfile" >"$folder/Dockerfile"
}

# istio_rootfs COMMAND FOLDER
istio_rootfs() {
  local root=$2 kind name
  mkdir -p "$root/usr/local/bin" "$root/tmp"
  chmod 1777 "$root/tmp"
  cp "$(build_dir istio)/$1" "$root/usr/local/bin/"
  [ "$1" = pilot-agent ] || return 0
  mkdir -p "$root/bin" "$root/var/lib/istio/envoy"
  cp "$(build_dir envoy)/envoy" "$root/usr/local/bin/"
  cp "$(build_dir istio)/data/envoy_bootstrap.json" "$root/var/lib/istio/envoy/envoy_bootstrap_tmpl.json"
  proxy_host_files | xargs cp -L --parents -t "$root"
  for kind in nft legacy; do
    for name in {iptables,ip6tables}{,-save,-restore}; do
      ln -s "xtables-$kind-multi" "$root/usr/sbin/${name/tables/tables-$kind}"
      [ $kind = legacy ] || ln -s "xtables-$kind-multi" "$root/usr/sbin/$name"
    done
  done
  # For a look inside.
  cp /bin/busybox "$root/bin/"
  for name in sh cat ls sleep wget; do ln -s busybox "$root/bin/$name"; done
}

# What the proxy's image takes from Debian: iptables, which fills a pod's own tables from in there, its extensions,
# and the libraries of these and of Envoy.
proxy_host_files() {
  local programs=(/usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi)
  {
    printf '%s\n' "${programs[@]}"
    find /usr/lib -path '*/xtables/*.so'
    ldd "${programs[@]}" "$(build_dir envoy)/envoy" | awk '$2 == "=>" { print $3 } $1 ~ "^/" && $2 ~ "^\\(" { print $1 }'
  } | sort -u
}

# images_build IMAGE…: the archives that are missing.
images_build() {
  local image missing=()
  for image in "$@"; do [ -e "$(image_archive "$image")" ] || missing+=("$image"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  require_packages images
  mkdir -p "$CACHE/images"
  lock "$CACHE/images/.lock" "build of images"
  rm -rf "$CACHE"/images/.build-* # of a build that was interrupted
  part "build ${#missing[@]} images" images_build_now "${missing[@]}"
}

images_build_now() {
  local image archive scratch
  scratch=$(mktemp -d "$CACHE/images/.build-XXXXXX")
  # Else it leaves a folder in /etc.
  printf '[network]\nnetwork_config_dir = "%s"\n' "$scratch/network" >"$scratch/containers.conf"
  for image in "$@"; do
    doing "$image"
    archive=$(image_archive "$image")
    mkdir "$scratch/context"
    image_context "$image" "$scratch/context"
    {
      # A store of its own: nothing is added to the user's.
      own_buildah() {
        CONTAINERS_CONF="$scratch/containers.conf" buildah --storage-driver vfs --root "$scratch/root" --runroot "$scratch/run" "$@"
      }
      own_buildah bud --isolation chroot --timestamp 0 --tag "$(image_reference "$image")" "$scratch/context" &&
        own_buildah push --digestfile "$scratch/digest" "$(image_reference "$image")" \
          "oci-archive:$scratch/archive:$(image_reference "$image")"
    } >"$scratch/log" 2>&1 || {
      tail -n 15 "$scratch/log" >&2
      die "could not build the image $image" "The last lines of buildah's log are above."
    }
    mv "$scratch/digest" "${archive%.tar}.digest"
    mv "$scratch/archive" "$archive"
    rm -rf "$scratch/context"
  done
  rm -rf "$scratch"
}

# images_load IMAGE…: base images that the cluster lacks, or has in another version.
images_load() {
  local image archive
  for image in "$@"; do
    archive=$(image_archive "$image")
    doing "$image"
    [ "$(loaded_digest "$(image_reference "$image")")" = "$(cat "${archive%.tar}.digest")" ] || import "$archive" >/dev/null
  done
}

# loaded_digest REFERENCE: the digest of the image of that name in the cluster; empty if there is none.
loaded_digest() { ctr images list "name==$1" | awk 'NR == 2 { print $3 }'; }

# import ARCHIVE: prints the names it brought, a line each.
import() {
  local out names
  out=$(ctr images import "$1" 2>&1) ||
    die "containerd does not take $1: $(tail -n 1 <<<"$out")" "It takes OCI archives and docker archives (as of 'docker save')."
  names=$(archive_names "$1")
  # containerd is content with one that nothing can be started from.
  [ -n "$names" ] ||
    die "the archive $1 names no image" "Next: make it with a name, as in oci-archive:FILE:localhost/NAME:TAG"
  echo "$names"
}

# archive_names ARCHIVE: as its own index says: what ctr prints is a progress display, and spoils some names.
archive_names() {
  {
    tar -xOf "$1" index.json 2>/dev/null | grep -oE '"(io.containerd.image.name|org.opencontainers.image.ref.name)": *"[^"]*"' || true
    tar -xOf "$1" manifest.json 2>/dev/null | grep -oE '"RepoTags": *\[[^]]*\]' | grep -oE '"[^"]*:[^"]*"' || true
  } | sed -E 's/.*"([^"]*)"$/\1/' | sort -u
}

# load ARGUMENT…: archives, or images of buildah's local store.
load() {
  local argument
  for argument in "$@"; do
    if [ -f "$argument" ]; then
      import "$argument" | sed 's/^/loaded /'
    else
      load_from_store "$argument"
    fi
  done
}

load_from_store() {
  local name
  command -v buildah >/dev/null || require_packages images
  name=$(buildah --storage-driver vfs inspect --type image --format '{{.FromImage}}' "$1" 2>/dev/null) ||
    die "no such archive and no such image in buildah's local store: $1" \
      "Next: buildah --storage-driver vfs images      lists what is there" \
      "      buildah --storage-driver vfs bud --isolation chroot -t $1 FOLDER     builds it"
  scratch
  rm -f "$SCRATCH/archive" # buildah does not overwrite
  buildah --storage-driver vfs push -q --digestfile "$SCRATCH/digest" "$name" "oci-archive:$SCRATCH/archive:$name" ||
    die "buildah could not write out $name" "Its message is above."
  if [ "$(loaded_digest "$name")" = "$(cat "$SCRATCH/digest")" ]; then
    echo "unchanged $name"
  else
    import "$SCRATCH/archive" | sed 's/^/loaded /'
  fi
}
