// SPDX-License-Identifier: Apache-2.0
//
// BlockedSignals: threads that are started while it lives take no signals. Signals are for the threads of the program;
// no worker of the library takes one away from them.
//
// single-threaded
#pragma once

#include <pthread.h>

#include <csignal>

namespace quire {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace quire
