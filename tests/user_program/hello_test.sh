#!/usr/bin/env bash
# Checks that the README's first program is the one here, and prints what the
# README says: hello_test.sh MUSTER_RUN HELLO HELLO_CC README.
set -euo pipefail
muster_run=$1 hello=$2 source=$3 readme=$4

diff <(sed -n '/^```cpp$/,/^```$/p' "$readme" | sed '1d;$d') "$source"

for ranks in 1 3 4; do
  output=$("$muster_run" --standalone --nproc-per-node="$ranks" -- "$hello" 2>&1)
  echo "$output"
  # The library sets up its log silently.
  ! grep -q InitGoogleLogging <<<"$output"
  for ((rank = 0; rank < ranks; ++rank)); do
    grep -q "rank $rank of $ranks has $((ranks * (ranks - 1) / 2))\$" <<<"$output"
  done
done
