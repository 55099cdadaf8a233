// Tests that Gloo calls the function in peer_name.cc.

#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "dataplane/cpu/transport/gloo_loop_handlers.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

// Connects to the address of a pair and resets the connection.
void ConnectAndReset(const std::vector<char>& address) {
  sockaddr_storage to = {};
  std::memcpy(&to, address.data(), std::min(address.size(), sizeof(to)));
  const int socket = ::socket(to.ss_family, SOCK_STREAM, 0);
  ASSERT_GE(socket, 0);
  ASSERT_EQ(connect(socket, reinterpret_cast<const sockaddr*>(&to),
                    to.ss_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6)),
            0);
  const linger reset = {.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)),
            0);
  close(socket);
}

TEST(PeerNameTest, APeerThatIsGoneBeforeItIsAcceptedFailsItsPairAlone) {
  gloo_transport::tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  auto device = std::make_shared<gloo_transport::tcp::Device>(
      gloo_transport::tcp::CreateDeviceAttr(attributes));
  auto spinner = std::make_unique<LoopSpinner>(*device);
  auto context = device->createContext(0, 3);
  context->setTimeout(std::chrono::seconds(60));
  const auto& lost = context->createPair(1);
  const auto& other = context->createPair(2);

  spinner->On();
  // In the event loop, so that the loop accepts the connection after the reset.
  spinner->Run([&] { ConnectAndReset(lost->address().bytes()); });
  // Wait for the loop's next iterations.
  spinner->Run([] {});
  spinner->Run([] {});
  spinner->Off();

  float value = 0;
  const auto buffer = context->createUnboundBuffer(&value, sizeof(value));
  // Throws whether the loop or this thread notices the reset first.
  EXPECT_THROW(
      {
        buffer->recv(1, 7);
        buffer->waitRecv(std::chrono::seconds(60));
      },
      std::exception);
  EXPECT_FALSE(other->address().bytes().empty());

  context.reset();
  // Destroy the device before the handler that its loop calls.
  device.reset();
}

}  // namespace
}  // namespace muster::dataplane::cpu
