// The table in SUPPORT.md matches the code.

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "dataplane/cuda/staging.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/testing/sample.h"
#include "gtest/gtest.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane {
namespace {

using testing::Sample;

constexpr char kBegin[] = "<!-- made by support_table_test: begin -->\n";
constexpr char kEnd[] = "<!-- made by support_table_test: end -->\n";

struct TypeClass {
  std::string name;
  std::vector<DataType> types;
};

const std::vector<TypeClass>& TypeClasses() {
  using enum DataType;
  static const auto* const kClasses = new std::vector<TypeClass>{
      {"uint8, int8, (u)int32, (u)int64",
       {kUint8, kInt8, kInt32, kInt64, kUint32, kUint64}},
      {"(u)int16", {kInt16, kUint16}},
      {"float16, bfloat16, float32, float64",
       {kFloat16, kBfloat16, kFloat32, kFloat64}},
      {"bool", {kBool}},
      {"complex64, complex128", {kComplex64, kComplex128}},
      {"float8_e4m3fn, float8_e5m2", {kFloat8E4m3fn, kFloat8E5m2}},
      {"pairs", {kFloat32Int32, kFloat64Int64, kInt32Int32, kInt64Int64}},
      {"opaque", {kOpaque}}};
  return *kClasses;
}

class Table {
 public:
  Table() {
    lines_.push_back("| verb | operation | backend | " + ClassNames() + " |");
    lines_.push_back("|---|---|---|---|---|---|---|---|---|---|---|");
  }

  // Adds the lines of `backend`, called `name` in the table, for tensors on
  // `device`: one line per set of kinds with equal cells.
  void Add(const std::string& name, const Backend& backend, Device device,
           const std::vector<CollectiveKind>& kinds, ReduceOp op,
           bool reduces) {
    std::vector<std::pair<std::string, std::string>> lines;
    for (const CollectiveKind kind : kinds) {
      std::vector<std::string> own;
      for (const TypeClass& types : TypeClasses()) {
        own.push_back(CellFor(backend, device, kind, op, types));
      }
      const std::string cells = absl::StrJoin(own, " | ");
      const auto same =
          std::find_if(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.second == cells; });
      if (same == lines.end()) {
        lines.emplace_back(CollectiveKindName(kind), cells);
      } else {
        absl::StrAppend(&same->first, ", ", CollectiveKindName(kind));
      }
    }
    if (lines.size() == 1) {
      lines[0].first = reduces ? "reductions" : "others";
    }
    for (const auto& [names, cells] : lines) {
      lines_.push_back(absl::StrCat(
          "| ", names, " | ", reduces ? std::string(ReduceOpName(op)) : "",
          " | ", name, " | ", cells, " |"));
    }
  }

  std::string Text() const {
    std::string text = absl::StrJoin(lines_, "\n") + "\n\n";
    for (const auto& [letter, error] : errors_) {
      absl::StrAppend(&text, "- (", letter, ") `", error, "`\n");
    }
    return text;
  }

 private:
  static std::string ClassNames() {
    return absl::StrJoin(TypeClasses(), " | ",
                         [](std::string* out, const TypeClass& types) {
                           out->append(types.name);
                         });
  }

  // "yes", or the letter of the error.
  std::string CellFor(const Backend& backend, Device device,
                      CollectiveKind kind, ReduceOp op,
                      const TypeClass& types) {
    std::string cell;
    for (const DataType type : types.types) {
      Sample sample(kind, {.world_size = 2, .data_type = type});
      sample.collective.reduce_op = op;
      sample.collective.function =
          ReduceFunction([](const void*, void*, size_t) {});
      Status status = Validate(sample.collective, 0, 2);
      Collective collective = sample.collective;
      for (auto* list : collective.lists()) {
        for (Tensor& tensor : *list) {
          tensor = Tensor(tensor.data(), type, tensor.shape(), device);
        }
      }
      if (status.ok()) status = backend.Supports(collective);
      const std::string own =
          status.ok() ? "yes" : ToLetter(status, kind, op, type);
      if (cell.empty()) cell = own;
      EXPECT_EQ(own, cell) << CollectiveKindName(kind) << " "
                           << DataTypeName(type);
    }
    return cell;
  }

  std::string ToLetter(const Status& status, CollectiveKind kind, ReduceOp op,
                       DataType type) {
    const std::string text = absl::StrReplaceAll(
        status.message(),
        {{"argument reduce_op: ", ""},
         {absl::StrCat(CollectiveKindName(kind), " does not support ",
                       ReduceOpName(op)),
          "VERB does not support OPERATION"},
         {absl::StrCat("has no ", CollectiveKindName(kind)), "has no VERB"},
         {absl::StrCat(", got ", DataTypeName(type), "[8]"), ""},
         {absl::StrCat("ReduceOp.", absl::AsciiStrToUpper(ReduceOpName(op))),
          "ReduceOp.OPERATION"},
         {absl::StrCat(ReduceOpName(op), " does not reduce ",
                       DataTypeName(type)),
          "OPERATION does not reduce TYPE"},
         {absl::StrCat("does not reduce ", DataTypeName(type)),
          "does not reduce TYPE"}});
    for (const auto& [letter, error] : errors_) {
      if (error == text) return absl::StrCat("(", letter, ")");
    }
    const std::string letter(1, static_cast<char>('a' + errors_.size()));
    errors_[letter] = text;
    return absl::StrCat("(", letter, ")");
  }

  std::vector<std::string> lines_;
  std::map<std::string, std::string> errors_;
};

struct Named {
  std::string name;
  const Backend* backend;
  Device device;
};

std::string MakeTable(const std::vector<Named>& backends) {
  Table table;
  std::vector<CollectiveKind> movements;
  std::vector<CollectiveKind> reductions;
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (!HasTensors(kind)) continue;
    (IsReduction(kind) ? reductions : movements).push_back(kind);
  }
  for (const auto& [name, backend, device] : backends) {
    table.Add(name, *backend, device, movements, ReduceOp::kSum,
              /*reduces=*/false);
    for (int i = 0; i < kReduceOpCount; ++i) {
      table.Add(name, *backend, device, reductions, static_cast<ReduceOp>(i),
                /*reduces=*/true);
    }
  }
  return table.Text();
}

// Lines that are equal for these.
constexpr char kGlooAndShm[] = "CPU,cuda:gloo";

std::string MakeTable(const Backend& backend,
                      DeviceType device = DeviceType::kCpu) {
  return MakeTable({{kGlooAndShm, &backend, {device, 0}}});
}

// A fake CUDA. Backends keep a reference to it.
const cuda::Api& HostCuda() {
  static const auto* const api = new cuda::Api(cuda::testing::HostCudaApi());
  return *api;
}
std::unique_ptr<Backend> MakeStaging() {
  return cuda::CreateStaging(HostCuda(),
                             *CreateBackend("gloo", {.world_size = 1}), {});
}
std::unique_ptr<Backend> MakeNccl() {
  return *nccl::CreateNcclBackend({.cuda = HostCuda(),
                                   .nccl = nccl::testing::HostNcclApi(),
                                   .nccl_version = 22809},
                                  {.world_size = 2});
}

std::string Expected() {
  const auto gloo = CreateBackend("gloo", {.world_size = 1});
  const auto shm = CreateBackend("shm", {.world_size = 1});
  EXPECT_EQ(MakeTable(**shm), MakeTable(**gloo));
  const auto staged = MakeStaging();
  EXPECT_EQ(MakeTable(*staged, DeviceType::kCuda), MakeTable(**gloo));
  const auto nccl = MakeNccl();
  return MakeTable({{kGlooAndShm, gloo->get(), {DeviceType::kCpu, 0}},
                    {"nccl", nccl.get(), {DeviceType::kCuda, 0}}});
}

TEST(SupportTableTest, TableSaysWhatTheCodeSays) {
  std::ifstream file("dataplane/SUPPORT.md");
  std::stringstream page;
  page << file.rdbuf();
  const std::string text = page.str();
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(kEnd);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const size_t first = begin + sizeof(kBegin) - 1;
  // On failure, copy Expected() to SUPPORT.md.
  EXPECT_EQ(text.substr(first, end - first), Expected());
}

TEST(SupportTableTest, AKindThatABackendLacksIsAnErrorThatNamesBoth) {
  const Collective unknown = {.kind = CollectiveKind(kCollectiveKindCount)};
  const auto gloo = CreateBackend("gloo", {.world_size = 1});
  EXPECT_EQ((*gloo)->Supports(unknown),
            UnimplementedError("the gloo backend has no unknown collective"));
  EXPECT_EQ(MakeStaging()->Supports(unknown), (*gloo)->Supports(unknown));
  EXPECT_EQ(MakeNccl()->Supports(unknown),
            UnimplementedError("the nccl backend has no unknown collective"));
}

}  // namespace
}  // namespace muster::dataplane
