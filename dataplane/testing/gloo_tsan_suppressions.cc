// What ThreadSanitizer may not report. The destructor of an unbound buffer
// waits until the I/O thread has let go of it, by a reference count, which the
// sanitizer does not see: the packaged Gloo is not built for it. Names Gloo's
// symbols alone.

// The sanitizer looks for this name.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer\n"
         "race:std::default_delete<gloo::transport::UnboundBuffer>\n";
}
// NOLINTEND(bugprone-reserved-identifier)
