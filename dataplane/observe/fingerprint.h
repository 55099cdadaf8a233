// Makes fingerprints of collectives.

#ifndef MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_
#define MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/fingerprint.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {

using base::Fingerprint;

// Validate may have refused `collective`: a rank of a failed group still tells
// what it ran.
Fingerprint MakeFingerprint(const Collective& collective, int world_size);

// For a rank that refuses `collective` because of `why`.
Fingerprint MakeRefusal(const Collective& collective, absl::string_view why);

// As base::FindMismatch. OK, or kInvalidArgument with the culprits.
Status Compare(absl::Span<const Fingerprint> fingerprints);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_FINGERPRINT_H_
