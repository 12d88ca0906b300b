// SPDX-License-Identifier: Apache-2.0
//
// The smallest user of the component cuda: its project has no CUDA compiler, and the machine may have no GPU.
#include "quire/device_kernels.h"

int main() {
  const quire::Status nothing = quire::launch_apply_deltas({}, {});
  const quire::Status wrong = quire::launch_append({}, {});
  return nothing.has_value() && !wrong.has_value() ? 0 : 1;
}
