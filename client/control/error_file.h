// Reads and writes the file in which a rank describes its failure, in the
// format of torchelastic's workers.

#ifndef MUSTER_CLIENT_CONTROL_ERROR_FILE_H_
#define MUSTER_CLIENT_CONTROL_ERROR_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::internal {

// Returns the message in the file that TORCHELASTIC_ERROR_FILE names,
//   {"message": {"message": TEXT, "extraInfo": {"timestamp": "SECONDS", ...}}}
// or with TEXT as "message" itself: its first line, cut to 400 bytes. Empty if
// there is no such file, or it has another format.
std::string ReadErrorFile(const std::string& path);

// A process that a message blames.
struct Culprit {
  int rank = 0;     // in the world
  int64_t pid = 0;  // on its host; 0: not known

  friend bool operator==(const Culprit&, const Culprit&) = default;
};

// Returns the first 1000 processes that the file's message blames, in its
// order. Empty if it blames none or the file has no list.
std::vector<Culprit> ReadErrorFileCulprits(const std::string& path);

// Writes the file with `message`, `culprits` (as extraInfo's "culprits") and
// the current time; does nothing if `path` is empty. Ignores errors: the
// launcher then quotes standard error.
void WriteErrorFile(const std::string& path, const std::string& message,
                    std::span<const Culprit> culprits = {});

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_ERROR_FILE_H_
