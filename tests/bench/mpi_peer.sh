#!/bin/sh
# OpenMPI's collectives, as a peer of muster-bench (worker/bench/peer.h):
#
#   muster-bench all_reduce --nproc=4 --peer=tests/bench/mpi_peer.sh
#
# Only mpirun starts MPI processes. So the peer of rank 0 starts one for each
# peer, and each peer talks to its MPI process by two FIFOs. Needs OpenMPI's
# mpirun, and mpi_peer (MPI_PEER, else bin/mpi_peer).
set -eu
program=${MPI_PEER:-bin/mpi_peer}
folder=$MUSTER_BENCH_FOLDER
for fifo in "$folder/mpi.$RANK.in" "$folder/mpi.$RANK.out"; do
  # The MPI process may have made it already.
  mkfifo "$fifo" 2>/dev/null || test -p "$fifo"
done
if [ "$RANK" = 0 ]; then
  # Allows root, and more ranks than processors.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  {
    mpirun --oversubscribe -n "$WORLD_SIZE" "$program" "$folder" \
      </dev/null >&2 && exit
    # Otherwise the other peers would wait for ever.
    for rank in $(seq 0 $((WORLD_SIZE - 1))); do
      echo "mpirun failed" >"$folder/mpi.$rank.out" &
    done
  } &
fi
# A background command would have another standard input.
exec 3<&0
cat <&3 >"$folder/mpi.$RANK.in" &
exec cat "$folder/mpi.$RANK.out"
