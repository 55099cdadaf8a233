// One process of a TcpStore: adds to a key in turn and prints the result.
//
//   store_rank HOST PORT RANK WORLD_SIZE
//
// Rank 0 serves the store. Prints "turn: N" with the number of its turn, which
// is its rank, and then "all: SUM".

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "muster/muster.hpp"

namespace muster {
namespace {

int Main(const char* host, int port, int rank, int world_size) {
  TcpStore store({.host = host,
                  .port = port,
                  .world_size = world_size,
                  .is_master = rank == 0});
  if (rank > 0) store.Wait({"turn/" + std::to_string(rank - 1)});
  std::cout << "turn: " << store.Add("turns", 1) - 1 << std::endl;
  const int64_t sum = store.Add("sum", rank);
  store.Set("turn/" + std::to_string(rank), std::to_string(sum));
  std::cout << "all: " << store.Get("turn/" + std::to_string(world_size - 1))
            << std::endl;
  // The rank that serves the store ends last.
  store.Add("ended", 1);
  if (rank > 0) return 0;
  while (store.Add("ended", 0) < world_size) {
  }
  return 0;
}

}  // namespace
}  // namespace muster

int main(int, char** argv) {
  return muster::Main(argv[1], std::atoi(argv[2]), std::atoi(argv[3]),
                      std::atoi(argv[4]));
}
