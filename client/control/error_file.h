// Reads and writes the file in which a rank describes its failure, in the
// format of torchelastic's workers.

#ifndef MUSTER_CLIENT_CONTROL_ERROR_FILE_H_
#define MUSTER_CLIENT_CONTROL_ERROR_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::internal {

// The message in the file that TORCHELASTIC_ERROR_FILE names, which is
//   {"message": {"message": TEXT, "extraInfo": {"timestamp": "SECONDS", ...}}}
// or has TEXT as "message" itself. Its first line, cut to 400 bytes. Empty:
// there is no such file, or nothing like that in it.
std::string ReadErrorFile(const std::string& path);

// Whom a message blames.
struct Culprit {
  int rank = 0;     // in the world
  int64_t pid = 0;  // on its host; 0: not known

  friend bool operator==(const Culprit&, const Culprit&) = default;
};

// Of the same file: whom the message blames, in its order, the first 1000.
// Empty: it blames nobody, or nobody wrote whom.
std::vector<Culprit> ReadErrorFileCulprits(const std::string& path);

// Writes one with `message`, `culprits` (as extraInfo's "culprits") and this
// time, unless `path` is empty. An error is of no interest: the launcher quotes
// standard error then.
void WriteErrorFile(const std::string& path, const std::string& message,
                    std::span<const Culprit> culprits = {});

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_ERROR_FILE_H_
