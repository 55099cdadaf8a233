#ifndef MUSTER_DATAPLANE_TESTING_ADDRESSES_H_
#define MUSTER_DATAPLANE_TESTING_ADDRESSES_H_

#include <string>

namespace muster::dataplane::testing {

// The address of rank `rank` in a group of this machine. All ranks are on one
// host, unless the environment variable MUSTER_LOCAL_WORLD_HOSTS gives hosts: a
// digit per rank, repeated from the beginning. With "001", ranks 2 and 5 are on
// another host than ranks 0, 1, 3 and 4. Another host is another address here.
std::string GetAddress(int rank);

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_ADDRESSES_H_
