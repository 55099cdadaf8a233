// Suppressions for ThreadSanitizer: objects that packaged libraries, which are
// not built for it, hand over by a reference count. The destructor of Gloo's
// unbound buffer waits until the I/O thread has released it; the last owner of
// a Status frees it. All are symbols of those libraries, except
// ShmMailbox::MayHaveCome, which may read memory that is a tensor by now; its
// callers check again.

// ThreadSanitizer looks up this name.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer\n"
         "race:std::default_delete<gloo::transport::UnboundBuffer>\n"
         "race:absl::*::Status::Unref\n"
         "race:muster::dataplane::cpu::ShmMailbox::MayHaveCome\n";
}
// NOLINTEND(bugprone-reserved-identifier)
