// Suppressions of LeakSanitizer: the packaged c-ares keeps the name of a host
// after a failed lookup.

// The sanitizer calls this function by its name.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions();

extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares\n";
}
// NOLINTEND(bugprone-reserved-identifier)
