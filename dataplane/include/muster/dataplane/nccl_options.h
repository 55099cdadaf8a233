#ifndef MUSTER_DATAPLANE_NCCL_OPTIONS_H_
#define MUSTER_DATAPLANE_NCCL_OPTIONS_H_

#include <optional>
#include <string>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// Options of the nccl backend. NCCL chooses every field that is not given.
// NCCL's environment variables (NCCL_...) override the fields. An NCCL that is
// too old for a field ignores it, except cta_policy, which is then an error. A
// value that NCCL would refuse is an error (kInvalidArgument) that names the
// field.
struct NcclOptions {
  // NCCL_CTA_POLICY_...: how many of the device's processors a collective uses.
  // kEfficiency: as few as suffice. kZero: none where copy engines can do the
  // work, which requires that all tensors of the collective lie in symmetric
  // memory; NCCL documents for which collectives.
  enum class CtaPolicy { kDefault = 0, kEfficiency = 1, kZero = 2 };

  // Collectives take precedence over kernels of streams of ordinary priority.
  bool is_high_priority_stream = false;
  // Waiting for a collective also blocks the host until the collective is
  // complete.
  bool blocking_wait = false;

  // The fields of ncclConfig_t with these names. commName is the group's name.

  // True: NCCL's calls return when they are done, not at once. No call of this
  // library blocks longer because of it: the group makes NCCL's calls on
  // threads of its own, one per communicator, and reports errors and timeouts
  // as usual. But NCCL does not allow an abort while one of the communicator's
  // calls is running. A call may wait for a rank that does not come: when
  // communicators are made, in the first collectives (which connect ranks), and
  // in AllocateSymmetric. Such a call keeps its thread, its communicator and
  // its stream, even after the group's end, until NCCL gives up. Do not touch
  // the tensors of such a collective until then, although the collective has
  // failed. A group split from this one, or from which this one is split, makes
  // its own communicators from scratch, not with ncclCommSplit or
  // ncclCommShrink.
  bool blocking = false;
  std::optional<int> cga_cluster_size = std::nullopt;  // 0 to 8
  std::optional<int> min_ctas = std::nullopt;          // 1 to max_ctas
  std::optional<int> max_ctas = std::nullopt;
  std::string net_name = {};                           // empty: not given
  std::optional<int> split_share = std::nullopt;       // 0 or 1
  std::optional<int> traffic_class = std::nullopt;     // from 0 on; NCCL 2.25
  std::optional<int> collnet_enable = std::nullopt;    // 0 or 1; 2.27
  std::optional<CtaPolicy> cta_policy = std::nullopt;  // 2.27; kZero: 2.28
  std::optional<int> shrink_share = std::nullopt;      // 0 or 1; 2.27
  std::optional<int> nvls_ctas = std::nullopt;         // from 1 on; 2.27
  std::optional<int> channels_per_net_peer = std::nullopt;  // 1 to 64; 2.28
  std::optional<int> nvlink_centric_sched = std::nullopt;   // 0 or 1; 2.28

  friend bool operator==(const NcclOptions&, const NcclOptions&) = default;
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_NCCL_OPTIONS_H_
