#!/usr/bin/env bash
# Runs a test program made by scripts/build_gpu_tests.sh on a machine with a GPU, in shards of at most 4 minutes:
#
#   scripts/gpu_tests.sh PROGRAM [SHARDS [GTEST_ARGUMENT...]]      default: 8 shards, two at a time
#
# Prints one line a shard, the names and the first output of the tests that failed, and the summary last; LOGS names a
# folder for the whole output of each shard. Fails if a test failed, if a shard ran
# out of time, if no test ran, or if tests were skipped for want of a GPU. Environment: AT_ONCE, SHARD_SECONDS.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
if [[ $# -lt 1 || ! -x $1 ]]; then
  echo "usage: scripts/gpu_tests.sh PROGRAM [SHARDS [GTEST_ARGUMENT...]]" >&2
  exit 2
fi
program=$(realpath "$1")
shards=${2:-8}
shift $(($# < 2 ? $# : 2))
at_once=${AT_ONCE:-2}
seconds=${SHARD_SECONDS:-240}

# cuBLASLt, where the loader does not find it by itself: the toolkit's folder, or that of Python's packages.
if ldd "$program" | grep -q 'libcublasLt.*not found'; then
  found=$(find /usr/local/cuda*/ /opt /usr/lib /usr/local/lib -name 'libcublasLt.so.13' 2>/dev/null | head -n 1)
  if [[ -z $found ]]; then
    echo "gpu_tests: libcublasLt.so.13 was not found; set LD_LIBRARY_PATH" >&2
    exit 2
  fi
  LD_LIBRARY_PATH=$(dirname "$found")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "gpu_tests: nvidia-smi does not work"
ldd "$program" | grep cublasLt

if [[ -n ${LOGS:-} ]]; then
  logs=$LOGS
  mkdir -p "$logs"
else
  logs=$(mktemp -d)
  trap 'rm -rf "$logs"' EXIT
fi

run_shard() {
  local index=$1 start=$EPOCHREALTIME status
  shift
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$index timeout -k 10 "$seconds" \
    "$program" --gtest_print_time=0 "$@" >"$logs/$index" 2>&1
  status=$?
  echo "$status $(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')" >"$logs/$index.status"
}

count() { grep -c "^\[ *$1 *\] [^0-9]" "$2"; }

for ((i = 0; i < shards; i++)); do
  while (($(jobs -rp | wc -l) >= at_once)); do wait -n; done
  run_shard "$i" "$@" &
done
wait

passed=0 failed=0 skipped=0 broken=0
for ((i = 0; i < shards; i++)); do
  read -r status time <"$logs/$i.status"
  ok=$(count OK "$logs/$i")
  # A failed or skipped test is named twice: where it ran, and in the list at the end.
  bad=$(sed '/Global test environment tear-down/,$d' "$logs/$i" | grep -c '^\[  FAILED  \]')
  skip=$(sed '/Global test environment tear-down/,$d' "$logs/$i" | grep -c '^\[  SKIPPED \]')
  note=""
  if [[ $status -eq 124 || $status -eq 137 ]]; then
    note=", OUT OF TIME in $(grep '^\[ RUN' "$logs/$i" | tail -n 1 | cut -c14-)"
  elif [[ $status -ne 0 && $bad -eq 0 ]]; then
    note=", ENDED WITH $status in $(grep '^\[ RUN' "$logs/$i" | tail -n 1 | cut -c14-)"
  fi
  [[ -n $note ]] && broken=$((broken + 1))
  echo "shard $((i + 1))/$shards: $ok passed, $bad failed, $skip skipped, $time s$note"
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
done

for ((i = 0; i < shards; i++)); do
  read -r status time <"$logs/$i.status"
  [[ $status -eq 0 ]] && continue
  echo "---- shard $((i + 1)): what failed"
  sed -n '/Global test environment tear-down/,$s/^\[  FAILED  \] //p' "$logs/$i" | grep -v '^[0-9]* test'
  sed '/Global test environment tear-down/,$d' "$logs/$i" | grep -v -E '^\[ +(OK|RUN|SKIPPED) +\]|Skipped$' | head -c 4000
done
without_gpu=$(cat "$logs"/[0-9]* | grep -c 'this machine or build has no GPU')
((without_gpu > 0)) && echo "gpu_tests: $without_gpu tests found no GPU"
((broken > 0)) && echo "gpu_tests: $broken shards did not finish"
echo "$passed passed, $((failed + broken)) failed, $skipped skipped"
((passed > 0 && failed == 0 && broken == 0 && without_gpu == 0))
