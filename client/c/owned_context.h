// The context of callbacks of the user.

#ifndef MUSTER_CLIENT_C_OWNED_CONTEXT_H_
#define MUSTER_CLIENT_C_OWNED_CONTEXT_H_

#include <atomic>

namespace muster::c {

// Calls the user's function when nothing uses the context any more. Until Take
// the caller owns the context: if the object that would use it cannot be made,
// nothing is called.
class OwnedContext {
 public:
  // `release` may be null.
  OwnedContext(void* context, void (*release)(void*))
      : context_(context), release_(release) {}
  ~OwnedContext() {
    if (is_taken_ && release_ != nullptr) release_(context_);
  }
  OwnedContext(const OwnedContext&) = delete;
  OwnedContext& operator=(const OwnedContext&) = delete;

  void Take() { is_taken_ = true; }
  void* context() const { return context_; }

 private:
  void* const context_;
  void (*const release_)(void*);
  std::atomic<bool> is_taken_ = false;
};

}  // namespace muster::c

#endif  // MUSTER_CLIENT_C_OWNED_CONTEXT_H_
