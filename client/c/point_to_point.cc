#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/distributed.h"
#include "muster/muster.h"
#include "muster/process_group.h"

namespace muster::c {
namespace {

struct SendVerb {
  SendVerb(const muster_tensor* tensor, int32_t dst,
           const muster_p2p_options* given)
      : SendVerb(tensor, dst, ReadOptions(given)) {}
  SendVerb(const muster_tensor* tensor, int32_t dst,
           const muster_p2p_options& given)
      : tensor(ToTensor(tensor, "tensor")),
        peer(dst, given.is_group_rank),
        options{.tag = given.tag,
                .timeout = ToMilliseconds(given.timeout_ms),
                .group_dst = peer.in_group} {}
  Tensor tensor;
  RankChoice peer;
  SendOptions options;
};

struct RecvVerb {
  RecvVerb(const muster_tensor* tensor, int32_t src,
           const muster_p2p_options* given)
      : RecvVerb(tensor, src, ReadOptions(given)) {}
  RecvVerb(const muster_tensor* tensor, int32_t src,
           const muster_p2p_options& given)
      : tensor(ToTensor(tensor, "tensor")), peer(src, given.is_group_rank) {
    if (src == MUSTER_ANY_SOURCE) peer.global = peer.in_group = std::nullopt;
    options.tag = given.tag;
    options.timeout = ToMilliseconds(given.timeout_ms);
    options.group_src = peer.in_group;
  }
  Tensor tensor;
  RankChoice peer;
  RecvOptions options;
};

P2POp ToP2POp(const muster_p2p_op& from,
              const std::shared_ptr<ProcessGroup>& group) {
  if (from.kind != MUSTER_ISEND && from.kind != MUSTER_IRECV) {
    ThrowArgument("ops",
                  "kind " + std::to_string(from.kind) + " does not exist");
  }
  CheckReserved(from, "ops");
  const RankChoice peer(from.peer, from.is_group_rank);
  P2POp op;
  op.op = from.kind == MUSTER_ISEND ? P2POp::Kind::kIsend : P2POp::Kind::kIrecv;
  op.tensor = ToTensor(from.tensor, "ops");
  op.peer = peer.global;
  op.group_peer = peer.in_group;
  op.group = group;
  op.tag = from.tag;
  return op;
}

}  // namespace
}  // namespace muster::c

using muster::c::GroupRef;
using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeWork;
using muster::c::Need;
using muster::c::RecvVerb;
using muster::c::SendVerb;

muster_status muster_send(const muster_tensor* tensor, int32_t dst,
                          muster_group* group,
                          const muster_p2p_options* options) {
  return Guard(__func__, [&] {
    const SendVerb verb(tensor, dst, options);
    GroupRef(group)->Send(verb.tensor, verb.peer.global, verb.options);
  });
}

muster_status muster_recv(const muster_tensor* tensor, int32_t src,
                          muster_group* group,
                          const muster_p2p_options* options, int32_t* source) {
  return Guard(__func__, [&] {
    const RecvVerb verb(tensor, src, options);
    const int from =
        GroupRef(group)->Recv(verb.tensor, verb.peer.global, verb.options);
    if (source != nullptr) *source = from;
  });
}

muster_status muster_isend(const muster_tensor* tensor, int32_t dst,
                           muster_group* group,
                           const muster_p2p_options* options,
                           muster_work** work) {
  return GuardHandle(__func__, work, "work", [&] {
    const SendVerb verb(tensor, dst, options);
    return MakeWork([&] {
      return GroupRef(group)->Isend(verb.tensor, verb.peer.global,
                                    verb.options);
    });
  });
}

muster_status muster_irecv(const muster_tensor* tensor, int32_t src,
                           muster_group* group,
                           const muster_p2p_options* options,
                           muster_work** work) {
  return GuardHandle(__func__, work, "work", [&] {
    const RecvVerb verb(tensor, src, options);
    return MakeWork([&] {
      return GroupRef(group)->Irecv(verb.tensor, verb.peer.global,
                                    verb.options);
    });
  });
}

muster_status muster_batch_isend_irecv(const muster_p2p_op* ops, size_t count,
                                       muster_group* group,
                                       muster_work** works) {
  return Guard(__func__, [&] {
    Need(works, "works");
    std::fill_n(works, count, nullptr);
    const GroupRef ref(group);
    std::vector<muster::P2POp> list;
    // Made before anything is started, so that no started work can be lost.
    std::vector<std::unique_ptr<muster_work>> handles;
    for (const muster_p2p_op& op : muster::c::ToSpan(ops, count, "ops")) {
      list.push_back(muster::c::ToP2POp(op, ref.shared()));
      handles.push_back(std::make_unique<muster_work>());
    }
    std::vector<muster::Work> started = muster::BatchIsendIrecv(list);
    for (size_t i = 0; i < started.size(); ++i) {
      handles[i]->work = std::move(started[i]);
      works[i] = handles[i].release();
    }
  });
}
