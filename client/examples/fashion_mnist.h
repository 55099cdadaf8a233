#ifndef MUSTER_CLIENT_EXAMPLES_FASHION_MNIST_H_
#define MUSTER_CLIENT_EXAMPLES_FASHION_MNIST_H_

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace muster::examples {

// A data set's file is missing or wrong. what() names the file, what was
// expected and what was found.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr int kImagePixels = 28 * 28;
inline constexpr int kClasses = 10;

// Grey images with their classes.
class LabelledImages {
 public:
  // `pixels` has kImagePixels bytes for each of `labels`.
  LabelledImages(std::vector<uint8_t> pixels, std::vector<uint8_t> labels);

  size_t size() const { return labels_.size(); }
  // Row by row, 0 black to 255 white.
  std::span<const uint8_t> image(size_t index) const;
  // 0 to kClasses - 1.
  int label(size_t index) const { return labels_[index]; }

 private:
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
};

enum class FashionMnistPart { kTrain, kTest };

// Reads the training or test images from `folder`, in the form in which the
// data set is distributed: gzip'd IDX files.
// Throws DatasetError.
LabelledImages ReadFashionMnist(const std::string& folder,
                                FashionMnistPart part);

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_FASHION_MNIST_H_
