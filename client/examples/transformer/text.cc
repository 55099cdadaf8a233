#include "client/examples/transformer/text.h"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace muster::examples {
namespace {

// SplitMix64.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Text Text::Read(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(
      gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    throw std::runtime_error(absl::StrCat(
        "text \"", path, "\" cannot be opened: ", std::strerror(errno),
        " (package fortunes, or --text)"));
  }
  std::string bytes;
  std::array<char, 65536> piece;
  int got = 0;
  while ((got = gzread(file.get(), piece.data(), piece.size())) > 0) {
    bytes.append(piece.data(), static_cast<size_t>(got));
  }
  int code = Z_OK;
  const std::string error = gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    throw std::runtime_error(absl::StrCat(
        "text \"", path, "\" cannot be read: ",
        code == Z_ERRNO ? std::string(std::strerror(errno)) : error));
  }
  return Text(bytes);
}

Text::Text(const std::string& bytes) {
  std::array<int64_t, 256> numbers = {};
  for (const char c : bytes) numbers[static_cast<unsigned char>(c)] = 1;
  for (size_t byte = 0; byte < numbers.size(); ++byte) {
    if (numbers[byte] == 0) continue;
    numbers[byte] = vocabulary();
    characters_ += static_cast<char>(byte);
  }
  for (const char c : bytes) {
    ids_.push_back(numbers[static_cast<unsigned char>(c)]);
  }
  held_out_ = static_cast<int64_t>(ids_.size()) * 9 / 10;
}

std::string Text::checksum() const {
  const std::string bytes = ToBytes(ids_);
  return absl::StrCat(absl::Hex(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()),
      absl::kZeroPad8));
}

void Text::CheckLength(int64_t length) const {
  if (held_out_ + length >= static_cast<int64_t>(ids_.size())) {
    throw std::runtime_error(absl::StrCat("a text of ", ids_.size(),
                                          " characters is too short for "
                                          "sequences of ",
                                          length));
  }
}

Batch Text::MakeTrainingBatch(uint64_t seed, int64_t step, SequenceRange range,
                              int64_t length) const {
  CheckLength(length);
  std::vector<int64_t> starts;
  for (int64_t i = range.first; i < range.first + range.count; ++i) {
    const uint64_t random = Mix(Mix(Mix(seed) + static_cast<uint64_t>(step)) +
                                static_cast<uint64_t>(i));
    starts.push_back(static_cast<int64_t>(
        random % static_cast<uint64_t>(held_out_ - length)));
  }
  return MakeBatch(starts, length);
}

Batch Text::MakeHeldOutBatch(SequenceRange range, int64_t length) const {
  CheckLength(length);
  const int64_t last = static_cast<int64_t>(ids_.size()) - length - 1;
  std::vector<int64_t> starts;
  for (int64_t i = range.first; i < range.first + range.count; ++i) {
    starts.push_back(held_out_ + (last - held_out_) * i / range.all);
  }
  return MakeBatch(starts, length);
}

Batch Text::MakeBatch(const std::vector<int64_t>& starts,
                      int64_t length) const {
  Batch batch;
  for (const int64_t start : starts) {
    const auto begin = ids_.begin() + start;
    batch.ids.insert(batch.ids.end(), begin, begin + length);
    batch.targets.insert(batch.targets.end(), begin + 1, begin + length + 1);
  }
  return batch;
}

double Text::ComputeBigramLoss() const {
  const auto size = characters_.size();
  // From 1 on: none is impossible.
  std::vector<double> counts(size * size, 1);
  std::vector<double> sums(size, static_cast<double>(size));
  double loss = 0;
  for (size_t i = 1; i < ids_.size(); ++i) {
    const auto first = static_cast<size_t>(ids_[i - 1]);
    double& count = counts[first * size + static_cast<size_t>(ids_[i])];
    if (i < static_cast<size_t>(held_out_)) {
      ++count;
      ++sums[first];
    } else {
      loss += std::log(sums[first] / count);
    }
  }
  return loss /
         static_cast<double>(static_cast<int64_t>(ids_.size()) - held_out_);
}

std::string Text::ToBytes(const std::vector<int64_t>& ids) const {
  std::string bytes;
  for (const int64_t id : ids) bytes += characters_[static_cast<size_t>(id)];
  return bytes;
}

}  // namespace muster::examples
