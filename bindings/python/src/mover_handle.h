// SPDX-License-Identifier: Apache-2.0
//
// MoverHandle: a Mover as Python and caches share it. It ends, and what Python lent it goes back, with the last of
// them.
//
// Under the GIL.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "cache_state.h"
#include "casters.h"
#include "errors.h"
#include "quire/device.h"
#include "quire/mover.h"

namespace quire::python {

namespace nb = nanobind;

/// A Mover with what Python lent it, by pool. In a forked child it has no threads: there it is left as it is.
struct OpenMover {
  OpenMover(std::unique_ptr<Mover> opened, std::vector<std::vector<nb::object>> used, Device* device)
      : kept(std::move(used)), mover(std::move(opened)), accelerator(device) {}
  OpenMover(const OpenMover&) = delete;
  OpenMover& operator=(const OpenMover&) = delete;
  ~OpenMover() {
    if (::getpid() != process) (void)mover.release();
  }

  std::vector<std::vector<nb::object>> kept;  // by pool
  std::unique_ptr<Mover> mover;               // behind what it uses, so that it is destroyed first
  Device* accelerator = nullptr;
  pid_t process = ::getpid();
  std::atomic<bool> is_closed = false;
};

/// What Python holds. Calls share the mover, so that closing it does not take it from below a call that waits; so do
/// caches that were given it as the mover of a rank.
struct MoverHandle {
  std::shared_ptr<OpenMover> open;

  [[nodiscard]] std::shared_ptr<OpenMover> get() const {
    if (open == nullptr) raise(ErrorCode::InvalidArgument, "the mover was closed: open() another one");
    return open;
  }
  void close() {
    if (open == nullptr) return;
    open->is_closed = true;
    // The last one out destroys it: its threads end, and what was lent goes back, with the GIL.
    std::shared_ptr<OpenMover> last = std::move(open);
    open = nullptr;
    std::unique_ptr<Mover> ending;
    if (last.use_count() == 1 && ::getpid() == last->process) ending = std::move(last->mover);
    if (ending == nullptr) return;
    const WithoutGil without;
    ending.reset();
  }
  ~MoverHandle() { close(); }
  explicit MoverHandle(std::shared_ptr<OpenMover> opened) : open(std::move(opened)) {}
  MoverHandle(MoverHandle&& other) noexcept : open(std::move(other.open)) {}
  MoverHandle& operator=(MoverHandle&&) = delete;
};

}  // namespace quire::python
