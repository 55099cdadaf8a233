// What ThreadSanitizer may not report. The packaged Gloo is not built for it,
// so it does not see that the destructor of an unbound buffer waits for the I/O
// thread by a reference count. Names Gloo's functions alone.

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::UnboundBuffer::~UnboundBuffer\n";
}
