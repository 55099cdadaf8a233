#include "client/parallel/dtensor/local_mesh.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "muster/errors.h"

namespace muster::testing {
namespace {

std::vector<int> Ascending(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

LocalMesh::LocalMesh(const std::vector<int64_t>& shape)
    : LocalMesh(shape, Ascending(shape)) {}

LocalMesh::LocalMesh(const std::vector<int64_t>& shape,
                     const std::vector<int>& ranks) {
  const int size = static_cast<int>(ranks.size());
  DeviceMeshOptions options;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    options.dim_names.push_back("d" + std::to_string(dim));
  }
  for (int rank = 0; rank <= size; ++rank) {
    MeshWorld world;
    world.rank = rank;
    world.size = size + 1;
    world.make_groups = [this, rank](const MeshGroups& groups) {
      for (const std::vector<int>& line : groups.ranks) {
        if (std::find(line.begin(), line.end(), rank) != line.end()) {
          return GetGroup(line, rank);
        }
      }
      return LocalGroups::NonMember();
    };
    meshes_.push_back(
        DeviceMesh::FromArray(world, "cpu", shape, ranks, options));
  }
}

std::shared_ptr<ProcessGroup> LocalMesh::GetGroup(const std::vector<int>& ranks,
                                                  int rank) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  auto& group = groups_[sorted];
  if (group == nullptr) {
    group = std::make_unique<LocalGroups>(sorted);
  }
  return group->at(static_cast<int>(
      std::find(sorted.begin(), sorted.end(), rank) - sorted.begin()));
}

std::vector<std::string> LocalMesh::OnEachRank(
    const std::function<void(const DeviceMesh&, int)>& body) {
  std::vector<std::string> thrown(static_cast<size_t>(size()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<size_t>(rank);
      try {
        body(meshes_[index], rank);
      } catch (const DistError& error) {
        thrown[index] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

void LocalMesh::Leave(int rank) {
  for (const auto& [ranks, group] : groups_) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found != ranks.end()) {
      group->Leave(static_cast<int>(found - ranks.begin()));
    }
  }
}

}  // namespace muster::testing
