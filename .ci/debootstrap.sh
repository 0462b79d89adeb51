# shellcheck shell=bash
# Sourced by the scripts here that take packages from a Debian mirror. Not a
# program of its own.

# debian_mirror prints the address of the Debian mirror to use: $DEBIAN_MIRROR,
# or the one that this machine's apt is configured with.
debian_mirror() {
    local codename mirror

    if [ -n "${DEBIAN_MIRROR-}" ]; then
        echo "$DEBIAN_MIRROR"
        return
    fi
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # shellcheck disable=SC2016 # apt's own placeholder
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        "Created-By: Packages" "Component: main" "Release: $codename" "Origin: Debian")
    mirror=${mirror%%$'\n'*}
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian mirror for $codename: run apt-get update, look at apt's sources, or set DEBIAN_MIRROR" >&2
        return 1
    fi
    echo "$mirror"
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
