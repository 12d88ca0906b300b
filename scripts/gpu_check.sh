#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests and measures quire on a GPU, in two steps that may be on two machines: the first needs nvcc and no GPU, the
# second a driver and what the first one made.
#
# Exit status: 0 all well; 1 a test failed, the sanitizer found something, or a target was missed or not measured; 2
# wrong arguments; 3 something is missing without which nothing can be done.
set -euo pipefail

help='Usage: scripts/gpu_check.sh build [FOLDER]
       FOLDER/gpu_check.sh run [--quick]

  build     compile the GPU tests and benchmarks and put them, with this script, into FOLDER (build/gpu_check)
  run       run all GPU tests, the same under compute-sanitizer, and the benchmarks; ends with one table. Takes about
            six minutes. It needs the files of FOLDER and a driver; compute-sanitizer and cuBLAS are used where they
            are found, and where not, the table says what was left out
  --quick   short runs of the matrix product, for a look: not for figures to keep

QUIRE_CUBLAS may say where libcublas.so.13 is.'

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

say() {
  printf 'gpu_check: %s\n' "$*" >&2
}

# ── build ──────────────────────────────────────────────────────────────────────────────────────────────────────────

build() {
  local root=${here%/scripts} folder=${1:-${here%/scripts}/build/gpu_check} commit name shared
  [[ -e $root/CMakePresets.json ]] || {
    say "build works in the repository only: this is a copy of the script"
    return 3
  }
  command -v cmake >/dev/null || {
    say "there is no cmake: ./quire test installs what is needed"
    return 3
  }
  say "building gpu_test and gpu_bench; this takes some minutes the first time"
  cmake --preset release -S "$root" >/dev/null
  if ! cmake --build "$root/build/release" --target help | grep '^gpu_bench' >/dev/null; then
    say "there is no nvcc, on the PATH or in /usr/local/cuda/bin"
    return 3
  fi
  cmake --build "$root/build/release" --target gpu_test gpu_bench >&2
  for name in gpu_test gpu_bench; do
    shared=$(readelf -d "$root/build/release/bin/$name" |
      sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|rt|pthread)\.so|ld-linux)' || true)
    if [[ -n $shared ]]; then
      say "$name needs shared libraries that the other machine may not have: $shared"
      return 3
    fi
  done
  mkdir -p -- "$folder"
  cp -- "$root/build/release/bin/gpu_test" "$root/build/release/bin/gpu_bench" "$folder/"
  cp -- "${BASH_SOURCE[0]}" "$folder/gpu_check.sh"
  commit=$(git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null) || commit='unknown'
  printf '%s\n' "$commit" >"$folder/commit"
  say "done: take $folder to a machine with a GPU and run $(basename -- "$folder")/gpu_check.sh run"
}

# ── run ────────────────────────────────────────────────────────────────────────────────────────────────────────────

results=()
status=0

# step <name> <command>...: shows the end of what a command says only when it fails.
step() {
  local name=$1 log begin=$SECONDS result='passed'
  shift
  log=$(mktemp)
  say "$name"
  if timeout 240 "$@" >"$log" 2>&1; then
    if ! grep -E '^\[  PASSED  \] [1-9]' "$log" >/dev/null; then
      tail -n 5 -- "$log" >&2
      result='NOT RUN: no test has passed'
      status=1
    fi
  else
    tail -n 60 -- "$log" >&2
    result='FAILED'
    status=1
  fi
  if [[ $result == passed ]]; then
    result=$(grep -E '^\[  (PASSED |SKIPPED) \] [0-9]|SUMMARY' -- "$log" | tail -n 2 | tr '\n' ' ') || true
  fi
  results+=("$(printf '%-26s %4d s  %s' "$name" $((SECONDS - begin)) "$result")")
  rm -f -- "$log"
}

find_cublas() {
  local candidate
  [[ -z ${QUIRE_CUBLAS:-} ]] || {
    printf '%s\n' "$QUIRE_CUBLAS"
    return
  }
  for candidate in /usr/local/cuda*/lib64/libcublas.so.13 /usr/lib/x86_64-linux-gnu/libcublas.so.13 \
    "${VIRTUAL_ENV:-/nowhere}"/lib/python3*/site-packages/nvidia/*/lib/libcublas.so.13 \
    "$(dirname -- "$(dirname -- "$(readlink -f -- "$(command -v python3 || true)")")")"/lib/python3*/site-packages/nvidia/*/lib/libcublas.so.13 \
    "$(dirname -- "$(dirname -- "$(command -v python3 || echo /nowhere/bin/python3)")")"/lib/python3*/site-packages/nvidia/*/lib/libcublas.so.13 \
    /usr/{,local/}lib/python3*/{site,dist}-packages/nvidia/*/lib/libcublas.so.13; do
    [[ ! -e $candidate ]] || {
      printf '%s\n' "$candidate"
      return
    }
  done
}

run() {
  local bench=() bench_status=0 begin=$SECONDS cublas sanitizer table
  [[ -x $here/gpu_test && -x $here/gpu_bench ]] || {
    say "gpu_test and gpu_bench are not beside this script: run '$0 build' first, then the copy that it makes"
    return 3
  }
  "$here/gpu_bench" --can-run || return 3
  [[ ${1:-} != --quick ]] || bench+=(--gemm-seconds 0.5 --gemm-runs 1)
  cublas=$(find_cublas)
  if [[ -n $cublas ]]; then
    bench+=(--cublas "$cublas")
    export LD_LIBRARY_PATH=${cublas%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
  step 'tests' "$here/gpu_test"
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || true
  if [[ -n $sanitizer ]]; then
    # It counts calls that the runtime refuses as errors: the tests that provoke them have a suite of their own.
    step 'compute-sanitizer memcheck' "$sanitizer" --tool memcheck --error-exitcode 1 \
      "$here/gpu_test" --gtest_filter='-GpuRefusals.*'
    step 'compute-sanitizer racecheck' "$sanitizer" --tool racecheck --error-exitcode 1 \
      "$here/gpu_test" --gtest_filter='GpuSwap.ARecord*:GpuSwap.Both*:GpuSwap.AStream*:GpuListPages.*:GpuGatherRing.*'
  else
    results+=('compute-sanitizer             NOT RUN: it is not installed here')
    status=1
  fi
  say 'benchmarks'
  table=$(mktemp)
  timeout 400 "$here/gpu_bench" "${bench[@]}" >"$table" || bench_status=$?
  case $bench_status in
    0) results+=('benchmarks                 every target met') ;;
    1) results+=('benchmarks                 targets missed or not measured, see below') ;;
    *) results+=("benchmarks                 FAILED with status $bench_status: what there is of the table is below") ;;
  esac
  ((bench_status == 0)) || status=1

  printf '\ngpu_check of %s on %s\n' "$(cat -- "$here/commit")" "$(date -u +%Y-%m-%d)"
  nvidia-smi --query-gpu=name,driver_version,pci.bus_id --format=csv,noheader 2>/dev/null || true
  printf 'command: %s/gpu_check.sh run %s\n\n' "$(basename -- "$here")" "$*"
  printf '%s\n' "${results[@]}"
  cat -- "$table"
  rm -f -- "$table"
  printf 'the whole run took %d s\n' $((SECONDS - begin))
  return "$status"
}

case ${1:-} in
  build)
    if (($# > 2)); then
      printf '%s\n' "$help" >&2
      exit 2
    fi
    build "${@:2}"
    ;;
  run)
    if (($# > 2)) || [[ $# == 2 && $2 != --quick ]]; then
      say "unknown argument; see $0 --help"
      exit 2
    fi
    run "${@:2}"
    ;;
  -h | --help) printf '%s\n' "$help" ;;
  *)
    printf '%s\n' "$help" >&2
    exit 2
    ;;
esac
