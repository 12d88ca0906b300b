// SPDX-License-Identifier: Apache-2.0
//
// A small transformer on quire, checked against an oracle without a cache.
#include <cstdio>

#include "demo.h"

int main() {
  return tiny_engine::run_tiny_engine(stdout);
}
