#!/usr/bin/env bash
# Runs clang-tidy on the given sources, or on all but the tests':
# tests/tidy/clang_tidy.sh [FILE...]. Needs generated headers: run it after a
# build with --config=clang.
set -euo pipefail
cd "$(dirname "$0")/../.."
generated=$(bazel info --config=clang bazel-bin 2>/dev/null)
files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
  mapfile -t files < <(git ls-files -- base coordinator dataplane client worker proto |
    grep -E '\.cc$' | grep -vE '_test\.cc$|/testing/')
fi
# Generated headers are not checked.
flags=(-std=c++20 -I. -Iproto -Ibase/include -Idataplane/include
  -Iclient/include -isystem "$generated/proto" -isystem "$generated"
  -isystem /usr/include/eigen3 -isystem /usr/lib/x86_64-linux-gnu/openmpi/include
  -Wno-unknown-warning-option)
# xargs appends the files, but clang-tidy expects them before the flags.
export MUSTER_TIDY_FLAGS="${flags[*]}"
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 bash -c \
  'clang-tidy-14 --quiet "$@" -- $MUSTER_TIDY_FLAGS' _ 2> >(
    grep -vE 'warnings? generated|Suppressed|Use -header-filter' >&2 || true)
