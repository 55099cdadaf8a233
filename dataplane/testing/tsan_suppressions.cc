// Suppressions for ThreadSanitizer: objects that packaged libraries, which are
// not built for it, hand over by a reference count: the last owner of a Status
// frees it. ShmMailbox::MayHaveCome may read memory that is a tensor by now;
// its callers check again.

// ThreadSanitizer looks up this name.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::*::Status::Unref\n"
         "race:muster::dataplane::cpu::ShmMailbox::MayHaveCome\n";
}
// NOLINTEND(bugprone-reserved-identifier)
