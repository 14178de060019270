#!/usr/bin/env bash
# Installs what galvani is built and tested with, on Debian or Ubuntu; with --slurm also a Slurm for the tests under it, which are
# skipped without one. The CUDA Toolkit and NCCL are NVIDIA's packages and are not installed here: without them the CPU backend is built.
set -euo pipefail

packages=(
    build-essential pkg-config git
    libopenmpi-dev openmpi-bin
    libhdf5-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libssl-dev libcairo2-dev
    libcmocka-dev python3 python3-pytest python3-pytest-xdist python3-h5py python3-numpy
)
if [ "${1:-}" = --slurm ]; then packages+=(slurm-wlm munge iproute2); fi

if ! command -v apt-get >/dev/null; then
    echo "deps.sh knows Debian and Ubuntu only. Install with your own package manager: ${packages[*]}" >&2
    exit 1
fi

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "every package is installed"
    exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "run as root: apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
