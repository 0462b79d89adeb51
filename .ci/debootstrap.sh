# shellcheck shell=bash
# Sourced by the scripts here that make stand-in images for machines which reach
# a Debian mirror but no image registry. Not a program of its own.

# debian_root DIR PACKAGE[,PACKAGE...] fills the new folder DIR with a minimal
# Debian of this machine's release and the packages named. Mirror and proxy are
# the ones apt itself is configured with.
debian_root() {
    local dir=$1 packages=$2 codename mirror http_proxy=${http_proxy-} https_proxy=${https_proxy-}

    if [ "$(id -u)" != 0 ]; then
        echo "debootstrap works as root only: run this as root" >&2
        return 1
    fi
    # Some other source of apt's that fails must not matter here.
    apt-get update -qq || true
    if ! command -v debootstrap >/dev/null; then
        echo "installing debootstrap" >&2
        apt-get install -qq --no-install-recommends debootstrap >/dev/null
    fi

    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # shellcheck disable=SC2016 # apt's own placeholder
    mirror=$(apt-get indextargets --format '$(REPO_URI)' \
        "Created-By: Packages" "Component: main" "Release: $codename" "Origin: Debian")
    mirror=${mirror%%$'\n'*}
    if [ -z "$mirror" ]; then
        echo "apt knows no Debian mirror for $codename: look at its sources and run apt-get update" >&2
        return 1
    fi
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
