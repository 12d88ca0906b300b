// SPDX-License-Identifier: Apache-2.0
//
// Descriptor: a file descriptor that is closed with its owner.
//
// single-threaded
#pragma once

#include <unistd.h>

#include <utility>

namespace quire {

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (is_open()) (void)::close(value_);
  }

  [[nodiscard]] bool is_open() const { return value_ >= 0; }
  [[nodiscard]] int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

}  // namespace quire
