#!/usr/bin/env bash
# Starts all_reduce_bench.py under mpirun.
#
#   [RANKS=2] all_reduce_bench.sh PACKAGE_FILE [ARGUMENTS...]
#
# PACKAGE_FILE is the package's _core.abi3.so.
set -euo pipefail

export PYTHONPATH
PYTHONPATH=$(cd "$(dirname "$1")/.." && pwd)
shift
# Also for root, and with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
exec mpirun -n "${RANKS:-2}" /usr/bin/python3 \
  "$PYTHONPATH/bench/all_reduce_bench.py" "$@"
