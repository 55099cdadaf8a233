#!/usr/bin/env bash
# The example trains on two ranks: the loss falls, and the ranks agree. A second
# run loads what the first has saved: it knows as much without training.
#
#   example_test.sh PACKAGE_FILE MUSTER_RUN EXAMPLE
set -euo pipefail

PYTHONPATH=$(cd "$(dirname "$1")/.." && pwd)
export PYTHONPATH PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1
muster_run=$2
example=$3
checkpoints=$(mktemp -d)
trap 'rm -r "$checkpoints"' EXIT

train() {
  "$muster_run" --standalone --nproc-per-node=2 -- /usr/bin/python3 \
    "$example" --epochs=1 --max-steps=100 --checkpoint-dir="$checkpoints"
}

log=$(train)
echo "$log"
grep -q "parameters equal" <<<"$log"
accuracy=$(sed -n 's/.*accuracy \([0-9.]*\) .*/\1/p' <<<"$log")
[[ "${accuracy%.*}" -ge 70 ]]

log=$(train)
echo "$log"
grep -q "accuracy $accuracy %, 2 ranks, parameters equal" <<<"$log"
[[ "$log" != *"epoch 1"* ]]
