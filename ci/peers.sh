#!/usr/bin/env bash
# Install the programs of others that tests run or speak to on the loopback (`ci/apt-packages.txt`), none of them as a service.
# Run: bash ci/peers.sh FOLDER. Debian's registry, whose package starts one, is unpacked to FOLDER/usr/bin instead.
# What cannot be installed is said, and the exit code is 1; the tests that need it skip, or fail under TILEC_PEERS=installed.
# A browser (`ci/apt-packages-optional.txt`) is installed too if that takes at most three minutes: without it the tests of the web
# page skip, whatever TILEC_PEERS is.
set -uo pipefail
packages=$(dirname "$0")/apt-packages.txt
folder=$1
mkdir -p "$folder"

apt() { DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout 600 apt-get -qq "$@" > /dev/null; }
present() {
    command -v cc && command -v redis-server && command -v nginx && command -v skopeo && command -v curl &&
        { command -v docker-registry || [ -x "$folder/usr/bin/docker-registry" ]; }
}

if ! present > /dev/null && command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    apt update
    xargs -a "$packages" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout 600 \
        apt-get -qq install -y --no-install-recommends > /dev/null
    (cd "$folder" && apt download docker-registry && dpkg-deb -x docker-registry_*.deb .)
fi
if ! command -v chromium > /dev/null && command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    xargs -a "$(dirname "$0")/apt-packages-optional.txt" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 timeout 180 \
        apt-get -qq install -y --no-install-recommends > /dev/null
fi
command -v chromium > /dev/null || echo "chromium is not installed: the tests of the web page skip" >&2
present > /dev/null || { echo "not all of cc, redis-server, nginx, skopeo, curl and docker-registry could be installed" >&2; exit 1; }
