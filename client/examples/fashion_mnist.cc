#include "client/examples/fashion_mnist.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster::examples {
namespace {

// The first number of an IDX file: bytes (8), and the number of dimensions.
constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;
// A header that asks for more is damaged.
constexpr uint32_t kItemsMax = 10'000'000;

// Reads one gzip'd file from its beginning to its end.
class GzipFile {
 public:
  explicit GzipFile(const std::string& path)
      : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (file_ == nullptr) {
      Fail(absl::StrCat("cannot be opened: ", std::strerror(errno),
                        " (package dataset-fashion-mnist, or --data_dir)"));
    }
  }
  ~GzipFile() { gzclose(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  [[noreturn]] void Fail(const std::string& what) const {
    throw DatasetError(absl::StrCat("data set file \"", path_, "\" ", what));
  }

  // Reads exactly `count` bytes.
  std::vector<uint8_t> Read(size_t count) {
    std::vector<uint8_t> bytes(count);
    size_t filled = 0;
    while (filled < count) {
      const size_t piece = std::min(count - filled, size_t{1} << 20);
      const int got =
          gzread(file_, bytes.data() + filled, static_cast<unsigned>(piece));
      if (got < 0) FailDamaged();
      if (got == 0) break;
      filled += static_cast<size_t>(got);
    }
    if (filled < count) {
      // Only this detects a file that was cut off within its compressed data.
      CheckEnd();
      Fail(absl::StrCat("is too short: ", count, " more bytes expected, ",
                        filled, " found"));
    }
    return bytes;
  }

  uint32_t ReadNumber() {
    const std::vector<uint8_t> bytes = Read(4);
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
           uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
  }

  // Reads to the end, because only that verifies the checksum.
  void ExpectEnd() {
    uint8_t byte;
    const int got = gzread(file_, &byte, 1);
    if (got > 0) Fail("is too long: bytes follow after the last item");
    if (got < 0) FailDamaged();
    CheckEnd();
  }

 private:
  void CheckEnd() {
    int code = Z_OK;
    gzerror(file_, &code);
    if (code != Z_OK && code != Z_STREAM_END) FailDamaged();
  }

  [[noreturn]] void FailDamaged() {
    int code = Z_OK;
    absl::string_view text = gzerror(file_, &code);
    if (code == Z_ERRNO) text = std::strerror(errno);
    // zlib puts the path before some of its texts.
    absl::ConsumePrefix(&text, absl::StrCat(path_, ": "));
    Fail(absl::StrCat("is damaged: ", text));
  }

  const std::string path_;
  const gzFile file_;
};

uint32_t ReadHeader(GzipFile& file, uint32_t magic) {
  const uint32_t found = file.ReadNumber();
  if (found != magic) {
    file.Fail(absl::StrFormat(
        "is not what it should be: magic number 0x%08x expected, 0x%08x found",
        magic, found));
  }
  const uint32_t items = file.ReadNumber();
  if (items == 0 || items > kItemsMax) {
    file.Fail(absl::StrCat("claims to hold ", items, " items; 1 to ", kItemsMax,
                           " expected"));
  }
  return items;
}

std::vector<uint8_t> ReadImages(const std::string& path) {
  GzipFile file(path);
  const uint32_t items = ReadHeader(file, kImagesMagic);
  const uint32_t rows = file.ReadNumber();
  const uint32_t columns = file.ReadNumber();
  if (rows != 28 || columns != 28) {
    file.Fail(absl::StrCat("holds images of ", rows, "x", columns,
                           " pixels; 28x28 expected"));
  }
  std::vector<uint8_t> pixels = file.Read(size_t{items} * kImagePixels);
  file.ExpectEnd();
  return pixels;
}

std::vector<uint8_t> ReadLabels(const std::string& path) {
  GzipFile file(path);
  const uint32_t items = ReadHeader(file, kLabelsMagic);
  std::vector<uint8_t> labels = file.Read(items);
  file.ExpectEnd();
  const auto wrong = std::find_if(labels.begin(), labels.end(),
                                  [](uint8_t l) { return l >= kClasses; });
  if (wrong != labels.end()) {
    file.Fail(absl::StrCat("has label ", *wrong, " at item ",
                           wrong - labels.begin(), "; 0 to ", kClasses - 1,
                           " expected"));
  }
  return labels;
}

}  // namespace

LabelledImages::LabelledImages(std::vector<uint8_t> pixels,
                               std::vector<uint8_t> labels)
    : pixels_(std::move(pixels)), labels_(std::move(labels)) {}

std::span<const uint8_t> LabelledImages::image(size_t index) const {
  return std::span<const uint8_t>(pixels_).subspan(index * kImagePixels,
                                                   kImagePixels);
}

LabelledImages ReadFashionMnist(const std::string& folder,
                                FashionMnistPart part) {
  const std::string base = absl::StrCat(
      folder, "/", part == FashionMnistPart::kTrain ? "train" : "t10k");
  const std::string images_path = base + "-images-idx3-ubyte.gz";
  const std::string labels_path = base + "-labels-idx1-ubyte.gz";
  std::vector<uint8_t> pixels = ReadImages(images_path);
  std::vector<uint8_t> labels = ReadLabels(labels_path);
  const size_t images = pixels.size() / kImagePixels;
  if (images != labels.size()) {
    throw DatasetError(absl::StrCat("data set file \"", images_path,
                                    "\" holds ", images, " images, but \"",
                                    labels_path, "\" holds ", labels.size(),
                                    " labels; as many of each expected"));
  }
  return LabelledImages(std::move(pixels), std::move(labels));
}

}  // namespace muster::examples
