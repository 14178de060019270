#!/usr/bin/env bash
# Lays out a CUDA 12.4 compiler that knows sm_70 (CUDA 13 does not) from packages, for `make sm70-report` and for machines without a
# toolkit of their own: scripts/sm70_toolchain.sh [DIRECTORY], by default .cache/sm70. Nothing outside the directory changes.
# The compiler driver comes from Debian's nvidia-cuda-toolkit, the headers and the run-time library from NVIDIA's wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${1:-.cache/sm70}
cuda_version=12.4.131
wheels=(nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cccl-cu12==12.4.127.post1)
ptxas_wheel=nvidia-cuda-nvcc-cu12==12.8.93

if [ -x "$prefix/bin/nvcc" ] && [ "$(cat "$prefix/complete" 2>/dev/null)" = "$cuda_version" ]; then
    echo "$prefix: CUDA $cuda_version is there"
    exit 0
fi
for tool in apt-get dpkg-deb python3 unzip; do
    command -v $tool >/dev/null || { echo "sm70_toolchain.sh needs $tool" >&2; exit 1; }
done

mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
work=$(mktemp -d "$prefix/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT

# trixie's package lists live in a private apt state. Added to the system's own sources, trixie would upgrade glibc, whose 2.41
# headers CUDA 12.4 rejects. The mirror is the one that this machine's Debian sources name.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -E '/debian/?$' | sort | uniq -c | sort -rn |
    awk 'NR == 1 {print $2}')
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ] || [ ! -e $keyring ]; then
    echo "sm70_toolchain.sh takes packages from Debian: no Debian mirror among this machine's apt sources" >&2
    exit 1
fi
mkdir -p "$work"/{lists/partial,cache/archives/partial,sources,debs,root,wheels}
echo "deb [arch=amd64 signed-by=$keyring] $mirror trixie non-free" >"$work/sources/trixie.list"
apt_options=(-qq -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Dir::Etc::sourcelist=/dev/null
    -o "Dir::Etc::sourceparts=$work/sources" -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root)
apt-get "${apt_options[@]}" update
(cd "$work/debs" && apt-get "${apt_options[@]}" download nvidia-cuda-toolkit)
dpkg-deb -x "$work"/debs/nvidia-cuda-toolkit_*.deb "$work/root"

fetch() {
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux2014_x86_64 \
        --platform manylinux1_x86_64 -d "$1" "${@:2}"
}
fetch "$work/wheels/cuda" "${wheels[@]}"
fetch "$work/wheels/ptxas" "$ptxas_wheel"
for wheel in "$work"/wheels/cuda/*.whl; do unzip -q -o "$wheel" -d "$work/headers"; done
unzip -q -o "$work"/wheels/ptxas/*.whl -d "$work/ptxas"

rm -rf "$prefix"/{bin,nvvm,include,lib,complete}
mkdir -p "$prefix"/{bin,nvvm/bin,nvvm/libdevice,include,lib}
for tool in cudafe++ fatbinary nvlink ptxas cuobjdump nvdisasm bin2c; do
    [ ! -e "$work/root/usr/bin/$tool" ] || cp "$work/root/usr/bin/$tool" "$prefix/bin/"
done
cp -r "$work/root/usr/lib/nvidia-cuda-toolkit/bin/." "$prefix/bin/"
[ -d "$prefix/bin/crt" ] || cp -r "$work/root/usr/bin/crt" "$prefix/bin/crt"
cicc=$(find "$work/root" -name cicc -type f | head -n 1)
cp "$cicc" "$prefix/nvvm/bin/cicc"
cp "$(find "$work/headers" "$work/root" -name 'libdevice.10.bc' | head -n 1)" "$prefix/nvvm/libdevice/"
cp -r "$work"/headers/nvidia/*/include/. "$prefix/include/"
cp "$work/headers/nvidia/cuda_runtime/lib/libcudart.so.12" "$prefix/lib/"
ln -sf libcudart.so.12 "$prefix/lib/libcudart.so"
# The resource report is made by the ptxas of CUDA 12.8, the version that runs on V100s today.
install -m 755 "$work/ptxas/nvidia/cuda_nvcc/bin/ptxas" "$prefix/bin/ptxas-12.8"
cat >"$prefix/bin/nvcc.profile" <<'PROFILE'
TOP              = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH            += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES        += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib" $(_SPACE_)
PROFILE
echo $cuda_version >"$prefix/complete"
echo "$prefix: CUDA $cuda_version"
