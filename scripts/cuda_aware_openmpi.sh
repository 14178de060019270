#!/usr/bin/env bash
# Builds an Open MPI that takes device pointers, for machines whose own does not: scripts/cuda_aware_openmpi.sh [DIRECTORY], by default
# .cache/openmpi-cuda. The source is that of Debian's package; Fortran, UCX, OFI, verbs and OpenSHMEM are left out. Afterwards:
#   make MPICC=DIRECTORY/bin/mpicc; DIRECTORY/bin/mpirun -np T build/galvani ...
# A moved copy runs with OPAL_PREFIX set to where it is.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${1:-.cache/openmpi-cuda}
cuda_home=${CUDA_HOME:-/usr/local/cuda}

if [ -x "$prefix/bin/mpicc" ]; then
    echo "$prefix: an Open MPI is there"
    exit 0
fi
[ -e "$cuda_home/include/cuda.h" ] || { echo "no cuda.h below $cuda_home: set CUDA_HOME" >&2; exit 1; }
for tool in apt-get tar gcc make; do
    command -v $tool >/dev/null || { echo "cuda_aware_openmpi.sh needs $tool" >&2; exit 1; }
done

mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A private apt state with the source packages of this machine's own Debian mirror.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -E '/debian/?$' | sort | uniq -c | sort -rn |
    awk 'NR == 1 {print $2}')
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ] || [ ! -e $keyring ]; then
    echo "cuda_aware_openmpi.sh takes the source from Debian: no Debian mirror among this machine's apt sources" >&2
    exit 1
fi
mkdir -p "$work"/{lists/partial,cache/archives/partial,sources,source}
echo "deb-src [signed-by=$keyring] $mirror bookworm main" >"$work/sources/bookworm.list"
apt_options=(-qq -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Dir::Etc::sourcelist=/dev/null
    -o "Dir::Etc::sourceparts=$work/sources" -o APT::Sandbox::User=root)
apt-get "${apt_options[@]}" update
# Without Debian's patches, which touch what the build is generated from.
(cd "$work/source" && apt-get "${apt_options[@]}" source --tar-only openmpi && tar -xf openmpi_*.orig.tar.xz)

cd "$work"/source/openmpi-*/
./configure --prefix="$prefix" --with-cuda="$cuda_home" --disable-mpi-fortran --disable-oshmem --without-ucx --without-ofi \
    --without-verbs --without-psm2 --disable-static --enable-shared --disable-dependency-tracking >"$work/configure.log" 2>&1 ||
    { tail -n 20 "$work/configure.log" >&2; exit 1; }
make -j"$(nproc)" >"$work/make.log" 2>&1 || { tail -n 20 "$work/make.log" >&2; exit 1; }
make install >"$work/install.log" 2>&1 || { tail -n 20 "$work/install.log" >&2; exit 1; }
"$prefix/bin/ompi_info" --parsable --all | grep -q 'mpi_built_with_cuda_support:value:true' ||
    { echo "the Open MPI that was built is not CUDA-aware" >&2; exit 1; }
echo "$prefix: a CUDA-aware Open MPI"
