#ifndef MUSTER_DATAPLANE_TESTING_ADDRESSES_H_
#define MUSTER_DATAPLANE_TESTING_ADDRESSES_H_

#include <string>

namespace muster::dataplane::testing {

// Where rank `rank` of a group of this machine is. All are on one host, unless
// MUSTER_LOCAL_WORLD_HOSTS, in the environment, says otherwise, a digit for
// each rank and from its beginning again: with "001" ranks 2 and 5 are on
// another host than ranks 0, 1, 3 and 4. Another host is another address here.
std::string AddressOf(int rank);

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_ADDRESSES_H_
