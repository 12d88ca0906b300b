// SPDX-License-Identifier: Apache-2.0
//
// AddressRound: one try to connect to a node at all addresses of its name, one after the other, until one works. Those
// that are left share what is left of the time, so that one where nothing ever answers does not use up all of it:
//
//     limit   ├──────────────────────────────────────────┤
//     tried   ├── 1 hangs ──┤2├─────────── 3 ────────────┤       2 has refused at once, which leaves more to 3
//
// A round that has failed is one failure of the node.
//
// single-threaded; time is an argument
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/types.h"
#include "remote/socket_address.h"

namespace quire {

class AddressRound {
 public:
  void begin(std::span<const SocketAddress> addresses, TimeNs now, TimeNs limit_ns);
  void end();

  [[nodiscard]] bool is_under_way() const { return !addresses_.empty(); }
  [[nodiscard]] bool has_next() const { return next_ < addresses_.size(); }
  /// Which has to be connected by due_ns().
  const SocketAddress& take_next(TimeNs now);
  /// The one that was taken last did not work.
  void failed(std::string_view why);

  [[nodiscard]] TimeNs due_ns() const { return due_ns_; }
  /// When all of it is over.
  [[nodiscard]] TimeNs end_ns() const { return end_ns_; }
  /// What became of each: "::1 (Connection refused), 127.0.0.1 (Connection refused)". Of a host that is its own only
  /// address, the reason alone.
  [[nodiscard]] std::string failures(std::string_view host) const;
  /// All of them, the one first that was taken last, because it worked.
  [[nodiscard]] std::vector<SocketAddress> with_taken_first() const;

 private:
  std::vector<SocketAddress> addresses_;
  std::size_t next_ = 0;
  TimeNs due_ns_ = 0;
  TimeNs end_ns_ = 0;
  std::vector<std::string> failures_;  // by address
};

}  // namespace quire
