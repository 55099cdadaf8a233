#ifndef MUSTER_TESTS_BENCH_TRAINING_RANK_H_
#define MUSTER_TESTS_BENCH_TRAINING_RANK_H_

#include <cstdint>
#include <string>
#include <vector>

namespace muster::bench {

struct TrainingSettings {
  int rank = 0;
  int ranks = 1;
  // The ranks meet in files of this folder.
  std::string folder;
  std::string backend;
  // By parameter. All are float32.
  std::vector<int64_t> elements;
  // FullyShard instead of DataParallel, with a group for each parameter.
  bool sharded = false;
  // DataParallel's gradients lie in the buckets, or else are copied.
  bool gradient_as_bucket_view = true;
  // The size of a bucket; 0: the usual sizes.
  int64_t bucket_kib = 0;
};

// RunTrainingRank is a rank that trains without a model: its backward pass
// takes a given time for each parameter, from the last one to the first, in
// proportion to the parameter's size. (FullyShard: a third of that time is the
// forward pass.) The time passes in one of two ways. `device`: the computation
// runs elsewhere, as on a GPU, and the rank's thread sleeps until it is done;
// what else the thread does meanwhile costs no time. `cpu`: the computation
// takes that much processor time of the thread.
//
// Forms the group, checks the averages of one step and prints `ready NAME`.
// Then it reads lines from its standard input until that ends,
//   KIND SECONDS SYNC STEPS
// makes STEPS steps whose computation takes SECONDS, and answers each line with
// the seconds of a step. DataParallel adds those of the last step with sync, as
// its logging data has them: computation, communication, the overlap of both,
// exposed communication. KIND is `device`, `cpu`, or `collectives` (with
// FullyShard): only the collectives of a step, one after the other. SYNC is 1,
// or 0 for steps without communication: NoSync, or with FullyShard the
// computation alone. Throws DistError, std::runtime_error.
void RunTrainingRank(const TrainingSettings& settings);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_TRAINING_RANK_H_
