#include "muster/data_parallel.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/control/fork_guard.h"
#include "client/parallel/agreement/agreement.h"
#include "muster/base/status.h"
#include "muster/communication_hooks.h"
#include "muster/errors.h"
#include "muster/muster_parallel.h"
#include "nlohmann/json.hpp"

struct muster_data_parallel {
  std::shared_ptr<muster::DataParallel> model = nullptr;
  std::optional<muster::DataParallel::NoSync> no_sync = std::nullopt;
};

namespace muster::c {
namespace {

using nlohmann::json;

std::shared_ptr<CommunicationHook> ToPowerSgdHook(
    const muster_power_sgd_options* options) {
  const muster_power_sgd_options from =
      ReadOptions(options, "options: power_sgd");
  PowerSgdOptions to;
  if (from.rank != 0) to.rank = from.rank;
  if (from.has_start_step != 0) to.start_step = from.start_step;
  if (from.min_compression_rate != 0) {
    to.min_compression_rate = from.min_compression_rate;
  }
  to.seed = from.seed;
  return MakePowerSgdHook(to);
}

std::shared_ptr<CommunicationHook> ToHook(
    const muster_data_parallel_options& options) {
  const std::string name = ToString(options.hook);
  if (name == "power_sgd") return ToPowerSgdHook(options.power_sgd);
  if (options.power_sgd != nullptr) {
    ThrowArgument("options", "power_sgd is not for the hook \"" + name + "\"");
  }
  constexpr std::array<
      std::pair<std::string_view, std::shared_ptr<CommunicationHook> (*)()>, 6>
      kHooks = {{{"", MakeAllReduceHook},
                 {"all_reduce", MakeAllReduceHook},
                 {"fp16", MakeFp16CompressHook},
                 {"bf16", MakeBf16CompressHook},
                 {"int8", MakeInt8CompressHook},
                 {"fp8", MakeFp8CompressHook}}};
  for (const auto& [known, make] : kHooks) {
    if (known == name) return make();
  }
  ThrowArgument("options",
                "there is no hook \"" + name +
                    "\"; there are all_reduce, fp16, bf16, int8, fp8 and "
                    "power_sgd");
}

// The tensor called `name` of the argument `argument`.
Tensor ToNamed(const muster_tensor* tensor, const std::string& name,
               const char* argument) {
  if (tensor == nullptr)
    ThrowArgument(argument, "\"" + name + "\" has no tensor");
  return ToTensor(tensor, argument);
}

// The arguments of a DataParallel.
struct Arguments {
  std::vector<Parameter> parameters;
  DataParallelOptions options;
};

Arguments ToArguments(const muster_parameter* parameters,
                      size_t parameter_count,
                      const muster_data_parallel_options* options) {
  Arguments to;
  for (const muster_parameter& from :
       ToSpan(parameters, parameter_count, "parameters")) {
    Parameter& parameter = to.parameters.emplace_back();
    parameter.name = ToString(from.name);
    parameter.value = ToNamed(from.value, parameter.name, "parameters");
    if (from.gradient == nullptr) continue;
    parameter.gradient = ToTensor(from.gradient, "parameters");
    // C++ takes that for a gradient in a bucket.
    if (parameter.gradient.data() == nullptr) {
      ThrowArgument("parameters",
                    "the gradient of \"" + parameter.name + "\" has no memory");
    }
  }
  const muster_data_parallel_options from = ReadOptions(options);
  if (from.bucket_bytes != 0) to.options.bucket_bytes = from.bucket_bytes;
  if (from.first_bucket_bytes != 0) {
    to.options.first_bucket_bytes = from.first_bucket_bytes;
  }
  for (const muster_named_tensor& buffer :
       ToSpan(from.buffers, from.buffer_count, "options: buffers")) {
    const std::string name = ToString(buffer.name);
    to.options.buffers.push_back(
        {name, ToNamed(buffer.tensor, name, "options: buffers")});
  }
  to.options.broadcast_buffers = from.no_broadcast_buffers == 0;
  to.options.find_unused_parameters = from.find_unused_parameters != 0;
  to.options.static_graph = from.static_graph != 0;
  to.options.hook = ToHook(from);
  return to;
}

// ToArguments. If this rank's arguments are bad, the other ranks, which wait in
// the constructor, get that error, too.
template <typename... T>
Arguments ToArgumentsOrThrowOnAllRanks(
    const std::shared_ptr<ProcessGroup>& group, T... arguments) {
  Status fault;
  try {
    return ToArguments(arguments...);
  } catch (const ArgumentError& error) {
    if (group->rank() < 0) throw;
    fault = InvalidArgumentError("argument " + error.text);
  } catch (const DistError& error) {
    if (group->rank() < 0) throw;
    fault = error.status();
  }
  internal::Agreement agreement("data_parallel");
  agreement.AddFault(fault);
  agreement.Check({group});
  throw DistError(fault);
}

json ToJson(const DataParallel::Times& times) {
  return {
      {"backward_compute_time", times.backward_compute_time.count()},
      {"backward_comm_time", times.backward_comm_time.count()},
      {"backward_compute_comm_overlap_time",
       times.backward_compute_comm_overlap_time.count()},
      {"exposed_comm_time", times.exposed_comm_time.count()},
  };
}

json ToJson(const DataParallel::LoggingData& data) {
  return {
      {"rank", data.rank},
      {"world_size", data.world_size},
      {"comm_hook", data.comm_hook},
      {"parameter_count", data.parameter_count},
      {"total_parameter_bytes", data.total_parameter_bytes},
      {"bucket_sizes", data.bucket_sizes},
      {"has_rebuilt_buckets", data.has_rebuilt_buckets},
      {"has_symmetric_buckets", data.has_symmetric_buckets},
      {"symmetric_bucket_count", data.symmetric_bucket_count},
      {"num_iterations", data.num_iterations},
      {"unused_parameters", data.unused_parameters},
      {"last", ToJson(data.last)},
      {"average", ToJson(data.average)},
  };
}

DataParallel& ToModel(muster_data_parallel* model) {
  return *Need(model, "model").model;
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;
using muster::c::ToModel;

muster_status muster_data_parallel_new(
    const muster_parameter* parameters, size_t parameter_count,
    muster_group* group, const muster_data_parallel_options* options,
    muster_data_parallel** model) {
  return GuardHandle(__func__, model, "model", [&] {
    const std::shared_ptr<muster::ProcessGroup> members =
        muster::c::GroupRef(group).shared();
    muster::c::Arguments to = muster::c::ToArgumentsOrThrowOnAllRanks(
        members, parameters, parameter_count, options);
    to.options.group = members;
    auto handle = std::make_unique<muster_data_parallel>();
    handle->model = muster::internal::MakeAtHome<muster::DataParallel>(
        std::move(to.parameters), to.options);
    return handle.release();
  });
}

void muster_data_parallel_release(muster_data_parallel* model) { delete model; }

muster_status muster_data_parallel_begin_step(muster_data_parallel* model) {
  return Guard(__func__, [&] { ToModel(model).BeginStep(); });
}

muster_status muster_data_parallel_ready(muster_data_parallel* model,
                                         size_t index) {
  return Guard(__func__, [&] { ToModel(model).Ready(index); });
}

muster_status muster_data_parallel_finish_step(muster_data_parallel* model) {
  return Guard(__func__, [&] { ToModel(model).FinishStep(); });
}

muster_status muster_data_parallel_shadow_step(muster_data_parallel* model) {
  return Guard(__func__, [&] { ToModel(model).ShadowStep(); });
}

muster_status muster_data_parallel_set_no_sync(muster_data_parallel* model,
                                               int32_t no_sync) {
  return Guard(__func__, [&] {
    muster_data_parallel& handle = Need(model, "model");
    if (no_sync == 0) {
      handle.no_sync.reset();
    } else if (!handle.no_sync.has_value()) {
      handle.no_sync.emplace(*handle.model);
    }
  });
}

muster_status muster_data_parallel_gradient(muster_data_parallel* model,
                                            size_t index,
                                            muster_tensor* gradient) {
  return Guard(__func__, [&] {
    const muster::DataParallel& from = ToModel(model);
    muster_tensor& to = Need(gradient, "gradient");
    const muster::Tensor tensor = from.Gradient(index);
    to = muster::c::FromTensor(tensor);
    // The local tensor ends with the call.
    const auto shape = from.parameters()[index].value.shape();
    to.shape = shape.data();
    to.ndim = static_cast<int32_t>(shape.size());
  });
}

muster_status muster_data_parallel_logging_data_json(
    muster_data_parallel* model, muster_strings** json) {
  return GuardHandle(__func__, json, "json", [&] {
    return muster::c::MakeStrings(
        muster::c::ToJson(ToModel(model).logging_data())
            .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  });
}
