#!/usr/bin/env bash
# Installs the Debian packages that fusegrad is built with, if any is missing.
#
#   scripts/install_dependencies.sh build    library and examples
#   scripts/install_dependencies.sh test     the above, the tests, the benchmarks, and oneDNN (optional)
#   scripts/install_dependencies.sh check    the above, and the sanitizers' and linters' compiler
#
# Where all packages are installed it calls neither apt nor sudo, so that it works offline and for any user.
set -euo pipefail

packages=(build-essential cmake ninja-build libeigen3-dev libfmt-dev nlohmann-json3-dev zlib1g-dev libcli11-dev)
case "${1:-}" in
  build) ;;
  test) packages+=(libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev python3) ;;
  check)
    packages+=(libgtest-dev libgmock-dev libbenchmark-dev libdnnl-dev python3)
    packages+=(clang clang-format clang-tidy shellcheck)
    ;;
  *)
    echo "usage: $0 build|test|check" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "This is not a Debian system. Make sure that it has what these Debian packages hold: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Packages are missing, and installing them needs root or sudo. As root, run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "Installing ${missing[*]}"
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get -qq install --yes --no-install-recommends "${missing[@]}" >/dev/null
