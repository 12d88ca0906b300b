// SPDX-License-Identifier: Apache-2.0
#include "remote/address_round.h"

#include <algorithm>

#include "base/check.h"

namespace quire {
namespace {

// Nobody answers in less; others may have taken longer than their share.
constexpr TimeNs kShareNsMin = 1'000'000;

}  // namespace

void AddressRound::begin(std::span<const SocketAddress> addresses, TimeNs now, TimeNs limit_ns) {
  end();
  addresses_.assign(addresses.begin(), addresses.end());
  end_ns_ = now + limit_ns;
}

void AddressRound::end() {
  addresses_.clear();
  failures_.clear();
  next_ = 0;
}

const SocketAddress& AddressRound::take_next(TimeNs now) {
  QUIRE_CHECK(has_next(), "all addresses were tried");
  const auto left = static_cast<TimeNs>(addresses_.size() - next_);
  due_ns_ = now + std::max((end_ns_ - now) / left, kShareNsMin);
  return addresses_[next_++];
}

void AddressRound::failed(std::string_view why) {
  failures_.emplace_back(why);
}

std::string AddressRound::failures(std::string_view host) const {
  if (addresses_.size() == 1 && failures_.size() == 1 && to_string(addresses_[0]) == host) return failures_[0];
  std::string text;
  for (std::size_t i = 0; i < failures_.size(); ++i) {
    text += (i == 0 ? "" : ", ") + to_string(addresses_[i]) + " (" + failures_[i] + ")";
  }
  return text;
}

std::vector<SocketAddress> AddressRound::with_taken_first() const {
  std::vector<SocketAddress> addresses = addresses_;
  if (next_ == 0) return addresses;
  const auto taken = addresses.begin() + static_cast<std::ptrdiff_t>(next_ - 1);
  std::rotate(addresses.begin(), taken, taken + 1);
  return addresses;
}

}  // namespace quire
