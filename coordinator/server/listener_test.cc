#include "coordinator/server/listener.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <iostream>

#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

// Makes IPv6 sockets fail in this process from now on.
void TakeIpv6Away() {
  std::array<sock_filter, 6> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter = {program.size(), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    _exit(1);
  }
}

// Whether IPv4 loopback reaches a listener at `port`.
bool Reaches(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool reaches =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return reaches;
}

TEST(ListenerTest, AllAddressesAreThoseOfIpv4Too) {
  const auto listener = Listener::Bind({"::", 0});
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(Reaches((*listener)->port()));
}

TEST(ListenerTest, WithoutIpv6AllAddressesAreThoseOfIpv4) {
  EXPECT_EXIT(
      {
        TakeIpv6Away();
        const auto listener = Listener::Bind({"::", 0});
        std::cerr << listener.status() << std::endl;
        _exit(listener.ok() && Reaches((*listener)->port()) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "OK");
}

}  // namespace
}  // namespace muster::coordinator
