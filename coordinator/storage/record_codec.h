// Encodes records as the keys and values of a storage, and decodes them.

#ifndef MUSTER_COORDINATOR_STORAGE_RECORD_CODEC_H_
#define MUSTER_COORDINATOR_STORAGE_RECORD_CODEC_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "coordinator/core/records.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The prefix of all keys of a job, and of no other job's keys.
std::string JobPrefix(absl::string_view job);

// The record's key: the job, the record's kind, its names.
std::string EncodeKey(absl::string_view job, const core::Record& record);

// The record's contents; none if it is erased.
std::optional<std::string> EncodeValue(const core::Record& record);

struct DecodedRecord {
  std::string job;
  core::Record record;
};

// Errors: DATA_LOSS (not the output of the functions above; the text shows the
//   key).
StatusOr<DecodedRecord> DecodeRecord(absl::string_view key,
                                     absl::string_view value);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_RECORD_CODEC_H_
