#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_TEXT_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace muster::examples {

// Sequences of characters, and for each character the one that follows it.
struct Batch {
  std::vector<int64_t> ids;
  std::vector<int64_t> targets;
};

// The sequences `first` to `first` + `count` - 1 of `all`.
struct SequenceRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t all = 0;
};

// Text is a text of which nine tenths are for training and the rest is held
// out. Its vocabulary is the bytes that it has.
class Text {
 public:
  // Reads a file, which may be gzip'd. Throws std::runtime_error, with the
  // path.
  static Text Read(const std::string& path);
  explicit Text(const std::string& bytes);

  int64_t vocabulary() const {
    return static_cast<int64_t>(characters_.size());
  }
  // A CRC-32.
  std::string checksum() const;

  // The functions that make batches throw std::runtime_error if the text is too
  // short.
  //
  // Sequences of `length` from random places in the training text. They depend
  // on the arguments alone, each on its number in the step.
  Batch MakeTrainingBatch(uint64_t seed, int64_t step, SequenceRange range,
                          int64_t length) const;
  // Sequences at even distances in the text that is held out.
  Batch MakeHeldOutBatch(SequenceRange range, int64_t length) const;

  // The loss on the text that is held out, in nats, of a model that knows how
  // often each character follows each other one in the training text.
  double ComputeBigramLoss() const;

  std::string ToBytes(const std::vector<int64_t>& ids) const;

 private:
  void CheckLength(int64_t length) const;
  Batch MakeBatch(const std::vector<int64_t>& starts, int64_t length) const;

  // By their number.
  std::string characters_;
  std::vector<int64_t> ids_;
  // Where the text that is held out begins.
  int64_t held_out_ = 0;
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_TEXT_H_
