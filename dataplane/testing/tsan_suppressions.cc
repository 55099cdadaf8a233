// What ThreadSanitizer may not report: what is handed over by a reference count
// inside a packaged library, which is not built for it. The destructor of
// Gloo's unbound buffer waits until the I/O thread has let go of it; and the
// last one to drop an Status frees it. Names symbols of those libraries
// alone, but for one: ShmMailbox::MayHaveCome reads what may be somebody's
// tensor by now, and whoever goes by it looks again.

// The sanitizer looks for this name.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer\n"
         "race:std::default_delete<gloo::transport::UnboundBuffer>\n"
         "race:absl::*::Status::Unref\n"
         "race:muster::dataplane::cpu::ShmMailbox::MayHaveCome\n";
}
// NOLINTEND(bugprone-reserved-identifier)
