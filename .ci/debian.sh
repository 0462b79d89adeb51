# shellcheck shell=bash
# Sourced by the scripts here that take packages from a Debian mirror, some of
# them for lack of an image registry. Not a program of its own.

# have_image TAG succeeds if the image is here or can be pulled.
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

# debian_unpack WORK SUITE PACKAGE... puts the files of Debian's packages, and of all that
# they depend on, into WORK/root, without installing anything: nothing is started, and
# nothing of the machine is touched. Any user may call it. WORK is a folder to be removed.
debian_unpack() {
    local work=$1 suite=$2 mirror package keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift 2

    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null || ! [ -e $keyring ]; then
        echo "the programs come from Debian's archive: install apt, dpkg and debian-archive-keyring" >&2
        return 1
    fi
    mirror=$(debian_mirror)
    mkdir -p "$work"/{root,lists/partial,archives/partial}
    # An apt that knows of this machine only how to reach the network. As it finds
    # nothing installed, it fetches every package that is needed.
    {
        apt-config dump | grep '^Acquire::'
        cat <<CONFIG
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$work";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work";
Dir::Cache::archives "$work/archives";
Dir::Log "$work";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Debug::NoLocking "true";
CONFIG
    } >"$work/apt.conf"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
    : >"$work/status"
    {
        APT_CONFIG=$work/apt.conf apt-get update -qq
        APT_CONFIG=$work/apt.conf apt-get install -qq --yes --download-only "$@"
    } >"$work/log" 2>&1 || {
        tail -n 20 "$work/log" >&2
        return 1
    }
    for package in "$work"/archives/*.deb; do
        dpkg-deb -x "$package" "$work/root"
    done
    rm -rf "$work"/root/usr/share/{doc,info,locale,man}
}

# debian_loader ROOT HOME prints the loader command that runs a program of ROOT after ROOT
# is moved to HOME. debian_unpack filled ROOT. Its C library is not this machine's, and only
# its own loader finds it.
debian_loader() {
    local loader triplet
    # /lib is apart from /usr/lib before Debian 13.
    loader=$(cd "$1" && find . -path '*/lib/*-linux-*/ld-linux*.so.*')
    triplet=$(basename "$(dirname "$loader")")
    printf '"%s" --library-path "%s"' "$2/$loader" \
        "$2/lib/$triplet:$2/usr/lib/$triplet:$2/usr/lib/$triplet/blas:$2/usr/lib/$triplet/lapack"
}

# debian_root DIR PACKAGE[,PACKAGE...] [SUITE] fills the new folder DIR with a minimal
# Debian, of this machine's release unless a suite is named, and the packages named.
# Mirror and proxy are the ones apt itself is configured with. The script is that of sid: a
# release may be newer than this machine's debootstrap.
debian_root() {
    local dir=$1 packages=$2 suite=${3-} mirror http_proxy=${http_proxy-} https_proxy=${https_proxy-}

    if [ "$(id -u)" != 0 ]; then
        echo "debootstrap works as root only: run this as root" >&2
        return 1
    fi
    # install-packages also updates apt's lists.
    .ci/install-packages debootstrap
    suite=${suite:-$(. /etc/os-release && echo "$VERSION_CODENAME")}
    mirror=$(debian_mirror)
    # apt-config prints nothing for a setting that isn't there.
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"

    http_proxy=$http_proxy https_proxy=$https_proxy \
        debootstrap --variant=minbase --include="$packages" "$suite" "$dir" "$mirror" /usr/share/debootstrap/scripts/sid >"$dir.log" 2>&1 || {
        tail -n 20 "$dir.log" >&2
        return 1
    }
    # A container needs neither apt's files nor documentation.
    rm -rf "$dir"/var/cache/apt/* "$dir"/var/lib/apt/lists/* "$dir"/usr/share/{doc,info,locale,man}/*
}
