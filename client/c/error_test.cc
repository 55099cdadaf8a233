#include "client/c/error.h"

#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/c/convert.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

using ::testing::HasSubstr;

struct ErrorCase {
  std::exception_ptr exception;
  muster_status status;
  muster_error_kind kind;
  std::string text;
};

TEST(ErrorTest, EveryExceptionBecomesAStatusAKindAndAText) {
  const ErrorCase cases[] = {
      {std::make_exception_ptr(DistError(InvalidArgumentError("bad"))),
       MUSTER_INVALID_ARGUMENT, MUSTER_ERROR_ARGUMENT, "bad"},
      {std::make_exception_ptr(DistError(UnimplementedError("no such"))),
       MUSTER_UNIMPLEMENTED, MUSTER_ERROR_ARGUMENT, "no such"},
      {std::make_exception_ptr(DistError(DeadlineExceededError("late"))),
       MUSTER_DEADLINE_EXCEEDED, MUSTER_ERROR_CONTROL, "late"},
      {std::make_exception_ptr(DistNetworkError(UnavailableError("gone"))),
       MUSTER_UNAVAILABLE, MUSTER_ERROR_NETWORK, "gone"},
      {std::make_exception_ptr(DistBackendError(InternalError("broken"))),
       MUSTER_INTERNAL, MUSTER_ERROR_BACKEND, "broken"},
      {std::make_exception_ptr(QueueEmptyError(NotFoundError("empty"))),
       MUSTER_NOT_FOUND, MUSTER_ERROR_STORE, "empty"},
      {std::make_exception_ptr(std::bad_alloc()), MUSTER_RESOURCE_EXHAUSTED,
       MUSTER_ERROR_INTERNAL, "there is not enough memory"},
      {std::make_exception_ptr(std::length_error("vector")),
       MUSTER_RESOURCE_EXHAUSTED, MUSTER_ERROR_INTERNAL,
       "there is not enough memory"},
      {std::make_exception_ptr(std::logic_error("a bug")), MUSTER_INTERNAL,
       MUSTER_ERROR_INTERNAL, "a bug"},
      {std::make_exception_ptr(7), MUSTER_UNKNOWN, MUSTER_ERROR_INTERNAL,
       "an exception of unknown type"},
  };
  for (const ErrorCase& one : cases) {
    EXPECT_EQ(Guard("f", [&] { std::rethrow_exception(one.exception); }),
              one.status);
    const muster_error* const error = muster_last_error();
    EXPECT_EQ(muster_error_status(error), one.status);
    EXPECT_EQ(muster_error_get_kind(error), one.kind);
    EXPECT_EQ(muster_error_message(error), one.text);
  }
}

TEST(ErrorTest, ABadArgumentNamesTheFunctionAndTheArgument) {
  EXPECT_EQ(Guard("muster_f", [] { Need<int>(nullptr, "size"); }),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_STREQ(muster_error_message(muster_last_error()),
               "muster_f: argument size is NULL");
  EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_ARGUMENT);
}

TEST(ErrorTest, EachThreadHasItsOwnLastErrorWhichSuccessKeeps) {
  EXPECT_NE(muster_get_debug_level(nullptr), MUSTER_OK);
  std::thread([] {
    EXPECT_EQ(muster_error_status(muster_last_error()), MUSTER_OK);
    EXPECT_EQ(muster_error_get_kind(muster_last_error()), MUSTER_ERROR_NONE);
    EXPECT_STREQ(muster_error_message(muster_last_error()), "");
  }).join();
  muster_debug_level level = 0;
  EXPECT_EQ(muster_get_debug_level(&level), MUSTER_OK);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("argument level is NULL"));
}

TEST(ErrorTest, CulpritsComeWithTheErrorAndItsCopies) {
  const MemberInfo member = {.rank = 3,
                             .member = "trainer-3",
                             .host = "node-1",
                             .pid = 42,
                             .cause = "lost",
                             .last_progress = "barrier #4",
                             .debug_address = "node-1:80"};
  Guard("f", [&] {
    throw DistBackendError(AbortedError("failed"), {member}, {{7, 2}});
  });
  muster_error* copy = nullptr;
  ASSERT_EQ(muster_error_copy(muster_last_error(), &copy), MUSTER_OK);
  // Another error takes the place of the one that was copied.
  EXPECT_NE(muster_get_debug_level(nullptr), MUSTER_OK);
  size_t count = 0;
  EXPECT_EQ(muster_error_culprit_ranks(muster_last_error(), &count), nullptr);
  EXPECT_EQ(count, 0U);
  const int32_t* const ranks = muster_error_culprit_ranks(copy, &count);
  EXPECT_EQ(std::vector<int32_t>(ranks, ranks + count),
            (std::vector<int32_t>{3, 7, 8}));
  ASSERT_EQ(muster_error_culprit_count(copy), 1U);
  muster_member_info info = {};
  info.size = sizeof(info);
  ASSERT_EQ(muster_error_culprit(copy, 0, &info), MUSTER_OK);
  EXPECT_EQ(info.size, sizeof(info));
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.pid, 42);
  EXPECT_STREQ(info.member, "trainer-3");
  EXPECT_STREQ(info.host, "node-1");
  EXPECT_STREQ(info.cause, "lost");
  EXPECT_STREQ(info.last_progress, "barrier #4");
  EXPECT_STREQ(info.debug_address, "node-1:80");
  EXPECT_EQ(muster_error_culprit(copy, 1, &info), MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("argument index: 1 of 1"));
  muster_error_release(copy);
}

TEST(ErrorTest, AStructOfAnOlderCallerIsFilledAsFarAsItGoes) {
  Guard("f", [&] {
    throw DistError(AbortedError("failed"), {{.rank = 3, .pid = 42}});
  });
  // Only size and rank.
  struct Old {
    size_t size;
    int32_t rank;
    int32_t reserved;
    int64_t canary;
  } old = {16, 0, 0, 77};
  EXPECT_EQ(muster_error_culprit(muster_last_error(), 0,
                                 reinterpret_cast<muster_member_info*>(&old)),
            MUSTER_OK);
  EXPECT_EQ(old.size, 16U);
  EXPECT_EQ(old.rank, 3);
  EXPECT_EQ(old.canary, 77);
  muster_member_info unset = {};
  EXPECT_EQ(muster_error_culprit(muster_last_error(), 0, &unset),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("argument member: size is 0; set it to sizeof"));
}

// Lives longer than the thread's last error, because it is made earlier.
struct FailsAtTheEnd {
  ~FailsAtTheEnd() {
    EXPECT_EQ(muster_get_debug_level(nullptr), MUSTER_INVALID_ARGUMENT);
    EXPECT_EQ(muster_error_status(muster_last_error()), MUSTER_OK);
  }
};

TEST(ErrorTest, ACallInALateDestructorOfAThreadFailsWithoutALastError) {
  std::thread([] {
    thread_local const FailsAtTheEnd object;
    static_cast<void>(&object);
    EXPECT_EQ(muster_get_debug_level(nullptr), MUSTER_INVALID_ARGUMENT);
    EXPECT_NE(muster_error_status(muster_last_error()), MUSTER_OK);
  }).join();
}

// Options as a program sees them that was compiled with a newer header.
struct NewerOptions {
  muster_set_options known;
  int64_t added;
};

TEST(OptionsTest, NewerOptionsWorkUnlessOneThatIsNotKnownIsSet) {
  muster_store* store = nullptr;
  ASSERT_EQ(muster_hash_store_new(&store), MUSTER_OK);
  NewerOptions options = {};
  options.known.size = sizeof(options);
  const auto* const given = reinterpret_cast<muster_set_options*>(&options);
  EXPECT_EQ(muster_store_set(store, "k", 1, "v", 1, given), MUSTER_OK);
  options.added = 1;
  EXPECT_EQ(muster_store_set(store, "k", 1, "v", 1, given),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("muster_store_set: argument options: has options that "
                        "this library (version "));
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("32 bytes, of which it knows 24"));
  muster_store_release(store);
}

TEST(OptionsTest, OlderOptionsHaveTheDefaultsOfWhatTheyLack) {
  // On the heap, where a read behind the end is an error of the sanitizer.
  const auto old = std::make_unique<char[]>(16);
  size_t size = 16;
  std::memcpy(old.get(), &size, sizeof(size));
  const auto* const given =
      reinterpret_cast<const muster_reduction_options*>(old.get());
  const muster_reduction_options read = ReadOptions(given);
  EXPECT_EQ(read.timeout_ms, 0);
  EXPECT_EQ(read.has_factor, 0);
  EXPECT_EQ(read.user_op, nullptr);
}

TEST(OptionsTest, ASizeThatWasNotSetOrIsNoneIsRefused) {
  muster_store* store = nullptr;
  ASSERT_EQ(muster_hash_store_new(&store), MUSTER_OK);
  muster_set_options options = {};
  for (const size_t size : {size_t{0}, size_t{7}, size_t{1} << 40}) {
    options.size = size;
    EXPECT_EQ(muster_store_set(store, "k", 1, "v", 1, &options),
              MUSTER_INVALID_ARGUMENT);
    EXPECT_THAT(muster_error_message(muster_last_error()),
                HasSubstr("argument options: size is " + std::to_string(size) +
                          "; set it to sizeof the struct"));
  }
  muster_store_release(store);
}

TEST(OptionsTest, AReservedFieldMustBeZero) {
  muster_store* store = nullptr;
  ASSERT_EQ(muster_hash_store_new(&store), MUSTER_OK);
  muster_set_options options = {};
  options.size = sizeof(options);
  options.reserved = 1;
  EXPECT_EQ(muster_store_set(store, "k", 1, "v", 1, &options),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_THAT(muster_error_message(muster_last_error()),
              HasSubstr("argument options: the field reserved is not 0"));
  muster_store_release(store);
}

TEST(VersionTest, TheLibrarySaysItsVersions) {
  EXPECT_EQ(muster_abi_version(), static_cast<uint32_t>(MUSTER_ABI_VERSION));
  EXPECT_THAT(muster_version(),
              ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\..*"));
  EXPECT_STREQ(muster_status_name(MUSTER_DATA_LOSS), "DATA_LOSS");
  EXPECT_STREQ(muster_status_name(99), "");
  EXPECT_STREQ(muster_dtype_name(MUSTER_BFLOAT16), "bfloat16");
  EXPECT_STREQ(muster_dtype_name(-1), "");
  EXPECT_EQ(muster_dtype_size(MUSTER_COMPLEX128), 16U);
  EXPECT_EQ(muster_dtype_size(1000), 0U);
}

}  // namespace
}  // namespace muster::c
