#include "coordinator/server/auth/handshake_peer.h"

#include <utility>

#include "openssl/ssl.h"

namespace muster::coordinator {
namespace {

// Null: this thread is not accepting a connection.
thread_local const std::string* accepting_from = nullptr;
thread_local std::string peer_of_step;

// Called for each record that a connection state reads or writes.
void OnRecord(int, int, int, const void*, size_t, SSL* ssl, void* peer) {
  if (SSL_is_init_finished(ssl) == 0) {
    peer_of_step = *static_cast<const std::string*>(peer);
  }
}

void OnNew(void* object, void*, CRYPTO_EX_DATA* data, int index, long, void*) {
  if (accepting_from == nullptr) return;
  auto* const peer = new std::string(*accepting_from);
  CRYPTO_set_ex_data(data, index, peer);
  auto* const ssl = static_cast<SSL*>(object);
  // A message callback, because the transport uses the info callback.
  SSL_set_msg_callback(ssl, &OnRecord);
  SSL_set_msg_callback_arg(ssl, peer);
}

void OnFree(void*, void* peer, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<std::string*>(peer);
}

void AskForNewStates() {
  static const int index =
      SSL_get_ex_new_index(0, nullptr, &OnNew, nullptr, &OnFree);
  static_cast<void>(index);
}

}  // namespace

AcceptingFrom::AcceptingFrom(std::string peer) : peer_(std::move(peer)) {
  AskForNewStates();
  accepting_from = &peer_;
}

AcceptingFrom::~AcceptingFrom() { accepting_from = nullptr; }

std::string HandshakePeer() { return peer_of_step; }

}  // namespace muster::coordinator
