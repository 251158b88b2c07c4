#!/bin/sh
# The wheels of Pythons that this machine has no packages of, and the core's tests on them, in a folder of Debian sid.
#
#     release/pythons.sh SDIST VERSION...      # `make pythons` names those that it does not find here
#
# The folder, build/debian, serves again. What is mounted there is in a namespace of this script, and ends with it.
set -eu
fail() {
    echo "make pythons: $1" >&2
    exit 1
}
sdist=$1 folder=$PWD/build/debian
shift
[ $# -gt 0 ] || fail "no Python is missing here: make wheels test-wheels"
[ "$(id -u)" = 0 ] || fail "chroot and mount need root: sudo make pythons"
command -v debootstrap >/dev/null || fail "debootstrap not found; install it (Debian: apt-get install debootstrap)"
if [ -z "${NAMESPACE-}" ]; then
    NAMESPACE=private exec unshare --mount "$0" "$sdist" "$@"
fi

# What names folders of this machine is no use there.
inside() {
    env -u PIP_FIND_LINKS -u UV_FIND_LINKS -u MAKEFLAGS -u MAKELEVEL DEBIAN_FRONTEND=noninteractive HOME=/root \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$folder" "$@"
}
if [ ! -e "$folder/made" ]; then
    echo "== Debian sid in $folder"
    rm -rf --one-file-system "$folder"
    mkdir -p "$folder"
    debootstrap --variant=minbase --include=ca-certificates,gcc,make,libc6-dev sid "$folder" >"$folder.log" 2>&1 \
        || { tail -n 20 "$folder.log"; exit 1; }
    touch "$folder/made"
fi
mount -t proc proc "$folder/proc"
mount --rbind /dev "$folder/dev"
cp -L /etc/resolv.conf /etc/hosts "$folder/etc"
cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs" || true
cp /etc/apt/apt.conf.d/* "$folder/etc/apt/apt.conf.d" # proxies, say
inside apt-get update -qq
for version; do
    inside apt-get install -qq -y --no-install-recommends "python$version-dev" "python$version-venv" >/dev/null
done

rm -rf "$folder/ringfeed"
mkdir "$folder/ringfeed"
tar -xzf "$sdist" -C "$folder/ringfeed" --strip-components=1
inside make -C /ringfeed PYTHON="python$version" wheels
mkdir -p dist
cp "$folder"/ringfeed/dist/*.whl dist
# What is red on one Python does not keep the next one from its tests.
inside make -C /ringfeed PYTHON="python$version" --keep-going test-wheels
