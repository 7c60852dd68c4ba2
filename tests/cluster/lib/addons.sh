# shellcheck shell=bash
# What is installed into the cluster once it runs. An addon NAME is a file addons/NAME.sh with the functions
#   NAME_tools     names of tools to build          NAME_install   installs it and waits until it works
#   NAME_images    names of base images to load     NAME_ready     succeeds if it is there and works
#   NAME_needs     names of addons it relies on, which stand before it in ADDONS

ADDONS=(tekton dns istio)
DEFAULT_ADDONS=(tekton)

load_addons() {
  local addon
  for addon in "${ADDONS[@]}"; do
    # shellcheck source=/dev/null
    . "$CLUSTER_HOME/addons/$addon.sh"
  done
}

check_addons() {
  local addon
  for addon in "$@"; do
    [[ " ${ADDONS[*]} " == *" $addon "* ]] || die "no such addon: $addon" "There are: ${ADDONS[*]}"
  done
}

# addons_in_order ADDON…: these and those they rely on, in the order to install them in.
addons_in_order() {
  local addon i wanted=" $* "
  # Backwards, since an addon only relies on earlier ones.
  for ((i = ${#ADDONS[@]} - 1; i >= 0; i--)); do
    addon=${ADDONS[i]}
    if [[ $wanted == *" $addon "* ]]; then wanted+="$("${addon}_needs" | tr '\n' ' ')"; fi
  done
  for addon in "${ADDONS[@]}"; do
    if [[ $wanted == *" $addon "* ]]; then echo "$addon"; fi
  done
}

addons_tools() { local addon; for addon in "$@"; do "${addon}_tools"; done; }
addons_images() { local addon; for addon in "$@"; do "${addon}_images"; done; }

addon_install() {
  local images
  mapfile -t images < <("$1_images")
  images_load "${images[@]}"
  mkdir -p "$STATE/addons"
  : >"$STATE/addons/$1"
  "$1_install"
}
