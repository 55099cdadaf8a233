#include "client/c/convert.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/version.h"

namespace muster::c {
namespace {

// No struct of options is this large: `size` was not set.
constexpr size_t kSizeMax = 1 << 16;

}  // namespace

void ReadOptionsOfOtherSize(const void* options, size_t size, size_t known,
                            const char* name, void* read) {
  if (size < sizeof(size_t) || size > kSizeMax) {
    ThrowArgument(name, "size is " + std::to_string(size) +
                            "; set it to sizeof the struct");
  }
  const auto* const bytes = static_cast<const char*>(options);
  std::memcpy(read, bytes, std::min(size, known));
  if (size <= known) return;
  if (std::any_of(bytes + known, bytes + size,
                  [](char byte) { return byte != 0; })) {
    ThrowArgument(name, "has options that this library (version " MUSTER_VERSION
                        ") does not know: " +
                            std::to_string(size) +
                            " bytes, of which it knows " +
                            std::to_string(known));
  }
}

void ThrowReserved(const char* name) {
  ThrowArgument(name, "the field reserved is not 0");
}

std::vector<std::string> ToStrings(const muster_bytes* items, size_t count,
                                   const char* name) {
  std::vector<std::string> strings;
  strings.reserve(count);
  for (const muster_bytes& item : ToSpan(items, count, name)) {
    strings.emplace_back(ToView(item.data, item.size, name));
  }
  return strings;
}

muster_strings* MakeStrings(std::string item) {
  auto strings = std::make_unique<muster_strings>();
  strings->items.push_back(std::move(item));
  return strings.release();
}

muster_strings* MakeStrings(std::vector<std::string> items) {
  return new muster_strings{std::move(items)};
}

muster_member_info ToMemberInfo(const MemberInfo& member) {
  muster_member_info info = {};
  info.size = sizeof(info);
  info.rank = member.rank;
  info.pid = member.pid;
  info.member = member.member.c_str();
  info.host = member.host.c_str();
  info.cause = member.cause.c_str();
  info.last_progress = member.last_progress.c_str();
  info.debug_address = member.debug_address.c_str();
  return info;
}

}  // namespace muster::c

size_t muster_strings_count(const muster_strings* strings) {
  return strings == nullptr ? 0 : strings->items.size();
}

const char* muster_strings_data(const muster_strings* strings, size_t index) {
  if (index >= muster_strings_count(strings)) return nullptr;
  return strings->items[index].c_str();
}

size_t muster_strings_size(const muster_strings* strings, size_t index) {
  if (index >= muster_strings_count(strings)) return 0;
  return strings->items[index].size();
}

void muster_strings_release(muster_strings* strings) { delete strings; }
