# shellcheck shell=bash
# Sourced by the scripts here that take packages from a Debian mirror, some of
# them for lack of an image registry. Not a program of its own.

# have_image TAG tells whether the image is here, after pulling it if need be.
have_image() {
    docker image inspect "$1" >/dev/null 2>&1 || docker pull -q "$1" >/dev/null 2>&1
}

# debian_mirror prints the address of the Debian mirror to use: $DEBIAN_MIRROR,
# or the one that this machine's apt is configured with.
debian_mirror() {
    local codename mirror

    if [ -n "${DEBIAN_MIRROR-}" ]; then
        echo "$DEBIAN_MIRROR"
        return
    fi
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(apt_mirrors "$codename")
    if [ -z "$mirror" ] && [ "$(id -u)" = 0 ]; then
        "$(dirname "${BASH_SOURCE[0]}")/install-packages" # apt had no lists yet
        mirror=$(apt_mirrors "$codename")
    fi
    mirror=${mirror%%$'\n'*}
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian mirror for $codename: run apt-get update, look at apt's sources, or set DEBIAN_MIRROR" >&2
        return 1
    fi
    echo "$mirror"
}

# apt_mirrors CODENAME prints those that apt has lists from, a line each.
apt_mirrors() {
    # shellcheck disable=SC2016 # apt's own placeholder
    apt-get indextargets --format '$(REPO_URI)' \
        "Created-By: Packages" "Component: main" "Release: $1" "Origin: Debian"
}

# debian_root DIR PACKAGE[,PACKAGE...] fills the new folder DIR with a minimal
# Debian of this machine's release and the packages named. Mirror and proxy are
# the ones apt itself is configured with.
debian_root() {
    local dir=$1 packages=$2 codename mirror http_proxy=${http_proxy-} https_proxy=${https_proxy-}

    if [ "$(id -u)" != 0 ]; then
        echo "debootstrap works as root only: run this as root" >&2
        return 1
    fi
    # It brings apt's lists up to date, too.
    .ci/install-packages debootstrap
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mirror=$(debian_mirror)
    # apt-config prints nothing for a setting that isn't there.
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"

    http_proxy=$http_proxy https_proxy=$https_proxy \
        debootstrap --variant=minbase --include="$packages" "$codename" "$dir" "$mirror" >"$dir.log" 2>&1 || {
        tail -n 20 "$dir.log" >&2
        return 1
    }
    # What apt and a reader of manuals want, a container does not.
    rm -rf "$dir"/var/cache/apt/* "$dir"/var/lib/apt/lists/* "$dir"/usr/share/{doc,info,locale,man}/*
}
