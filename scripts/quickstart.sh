#!/usr/bin/env bash
# From a bare Debian 12 to a trained network: installs what is missing, builds the library and the examples, and trains
# on real handwritten digits. The last line is the accuracy on the 360 digits that training did not see.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_dependencies.sh build
cmake --preset cpu -DFUSEGRAD_TESTS=OFF -DFUSEGRAD_BENCH=OFF
cmake --build --preset cpu
build/cpu/examples/train_digits "$@"
