#!/usr/bin/env bash
# Builds the test program for a machine with a GPU, on a machine that need not have one:
#
#   scripts/build_gpu_tests.sh [BUILD_DIR [JOBS]]      default: build/gpu-tests 1
#
# The program has sm_90 code, runs on any x86-64-v3 processor, and brings GoogleTest, zlib, the C++ and the CUDA runtime
# along; of the other machine it wants glibc, a driver and cuBLASLt 13 (libcublasLt.so.13). Copy the tree, or at least
# the program, scripts/gpu_tests.sh and examples/data, and run scripts/gpu_tests.sh there. For another GPU set ARCH,
# for example ARCH=80.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/gpu-tests}
jobs=${2:-1}

launchers=()
if command -v ccache >/dev/null; then
  launchers=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFUSEGRAD_CUDA=ON -DFUSEGRAD_NATIVE=OFF -DFUSEGRAD_ONEDNN=OFF \
  -DCMAKE_CUDA_ARCHITECTURES="${ARCH:-90}" -DCMAKE_CXX_FLAGS=-march=x86-64-v3 \
  -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc" -DZLIB_USE_STATIC_LIBS=ON \
  -DFUSEGRAD_TEST_SOURCE_DIR=. -DFUSEGRAD_EXAMPLES=OFF -DFUSEGRAD_BENCH=OFF "${launchers[@]}"
cmake --build "$build" --target fusegrad_tests -j "$jobs"
strip -o "$build/fusegrad_gpu_tests" "$build/tests/fusegrad_tests"
ls -l "$build/fusegrad_gpu_tests"
