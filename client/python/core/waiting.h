// Waits that Ctrl-C can end.
//
// Python runs a signal's handler on the main thread, between two bytecodes, so
// a call that waits in C would delay it for ever. muster_work_wait_for can wait
// in slices. A synchronous collective cannot: it runs on the thread that makes
// the call. So the module notes the call that the main thread is in, and the
// thread of muster/_interrupts.py, which learns of signals, aborts its group.

#ifndef MUSTER_CLIENT_PYTHON_CORE_WAITING_H_
#define MUSTER_CLIENT_PYTHON_CORE_WAITING_H_

#include "client/python/core/limited_python.h"
#include "muster/muster.h"

namespace muster::python {

// `ident`: of the thread on which Python handles signals (threading.get_ident).
void SetMainThread(unsigned long ident);

bool IsMainThread();

// `watch`: a function of Python that sees to it that signals reach
// muster/_interrupts.py. Called by collectives of the main thread, now and
// then.
void SetWatch(PyObject* watch);

// (number, group) of the collective in which the main thread is, or None. The
// number differs from call to call.
PyObject* GetRunningCall();

// Sets the exception of a failed call, or of a signal's handler.
bool CheckStatus(muster_status status);

// Notes that the main thread is in a collective of `group`: None or a Group.
// The handler of a signal may make another one before the first has begun.
class RunningCall {
 public:
  explicit RunningCall(PyObject* group);
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;
  ~RunningCall();

  // Handles signals that have come, and sees to it that later ones interrupt
  // the call. False, with the exception of a handler.
  bool HandleSignals() const;

 private:
  const bool is_main_;
  const unsigned long long outer_number_;
  PyObject* const outer_group_;
};

// Runs `call`, a collective of `group`, without the GIL. False, with an
// exception.
template <typename Call>
bool RunInterruptibly(PyObject* group, Call call) {
  const RunningCall running(group);
  // A signal before this point is handled here, a later one by the abort.
  if (!running.HandleSignals()) return false;
  PyThreadState* thread = PyEval_SaveThread();
  const muster_status status = call();
  PyEval_RestoreThread(thread);
  return CheckStatus(status);
}

// Runs `call` without the GIL. False, with an exception.
template <typename Call>
bool RunUnlocked(Call call) {
  PyThreadState* thread = PyEval_SaveThread();
  const muster_status status = call();
  PyEval_RestoreThread(thread);
  return CheckStatus(status);
}

}  // namespace muster::python

#endif  // MUSTER_CLIENT_PYTHON_CORE_WAITING_H_
