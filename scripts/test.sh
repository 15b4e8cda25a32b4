#!/usr/bin/env bash
# Builds everything and runs every test that needs no GPU and is not slow; ends with ctest's summary. Arguments go to
# ctest:
#
#   scripts/test.sh -R Tape          the tests whose name matches
#   FUSEGRAD_LONG=1 scripts/test.sh  the slow ones too
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_dependencies.sh test
cmake --preset cpu -DFUSEGRAD_TESTS=ON -DFUSEGRAD_BENCH=ON
cmake --build --preset cpu

selection=(--label-exclude 'long|gpu')
if [ -n "${FUSEGRAD_LONG:-}" ]; then
  selection=(--label-exclude gpu)
fi
ctest --preset cpu --parallel "$(nproc)" "${selection[@]}" "$@"
