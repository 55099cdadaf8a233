// What LeakSanitizer may not report: the packaged c-ares keeps the name of a
// host that it looked up in vain.

// The sanitizer looks for this name.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares\n";
}
// NOLINTEND(bugprone-reserved-identifier)
