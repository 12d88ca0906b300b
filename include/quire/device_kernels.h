// SPDX-License-Identifier: Apache-2.0
//
// The byte work of a step in the memory of a GPU: each launcher has a twin of the same name in host_kernels.h or
// quantised_kernels.h, which says what it does and judges it, bit for bit. It is a library of its own, quire::cuda:
//
//     find_package(quire COMPONENTS cuda)
//     target_link_libraries(engine PRIVATE quire::cuda)
//
// Parameters are the twins' own. Pools, sources, targets, tables and all spans are in the device's memory, where the
// host never looks; geometries, entries and state slots are objects of the host, read before the launcher returns. What
// differs from a twin:
//
//     a number in the device's memory names what there is not    nothing is written for it, and nothing is said; what
//                                                                gathers or reads has zeros in its place
//     an argument of the host is wrong                           InvalidArgument, and nothing is launched
//     the runtime refuses a launch                               Unavailable without a device, Unsupported on one that
//                                                                the kernels were not built for, else Io: with the
//                                                                error's name
//     two rows of an append, or two deltas, at one place         either may stay, or a part of each: plans have none
//
// A launcher puts kernels on the stream and returns: it allocates nothing, waits for nothing, touches no other stream,
// and can be captured in a graph. How many threads it starts follows from what the host sees, such as the lengths of
// spans, so a captured launch may be replayed on other contents. The stream's device is the current one. Rows may have
// any address and size; those of whole 16 bytes at such addresses are the fastest. Arrays of numbers are aligned as
// their elements are.
//
// thread-safe
#pragma once

#include "quire/device.h"
#include "quire/host_kernels.h"
#include "quire/quantised_kernels.h"
#include "quire/result.h"

namespace quire {

[[nodiscard]] Status launch_append(const AppendParams& params, DeviceStream stream);
[[nodiscard]] Status launch_read_rows(const ReadRowsParams& params, DeviceStream stream);
/// Copies run side by side: no target is a source or another's target, as in plans.
[[nodiscard]] Status launch_copy_pages(const CopyPagesParams& params, DeviceStream stream);
[[nodiscard]] Status launch_move_tokens(const MoveTokensParams& params, DeviceStream stream);
/// Here `copies` is in the host's memory, as `geometries` and `pools` are: what is launched follows from them, and a
/// captured launch repeats them as they were. Copies that there cannot be are InvalidArgument.
[[nodiscard]] Status launch_copy_states(const CopyStatesParams& params, DeviceStream stream);
[[nodiscard]] Status launch_reset_pages(const ResetPagesParams& params, DeviceStream stream);
[[nodiscard]] Status launch_apply_deltas(const ApplyDeltasParams& params, DeviceStream stream);
[[nodiscard]] Status launch_list_pages(const ListPagesParams& params, DeviceStream stream);

[[nodiscard]] Status launch_append_quantised(const AppendQuantisedParams& params, DeviceStream stream);
/// Entries of a page that the pool does not have count as those of a negative one, here and below.
[[nodiscard]] Status launch_gather_selected(const GatherSelectedParams& params, DeviceStream stream);
[[nodiscard]] Status launch_gather_last(const GatherLastParams& params, DeviceStream stream);
[[nodiscard]] Status launch_gather_ring(const GatherRingParams& params, DeviceStream stream);

// Of swaps: swap_kernels.h.
[[nodiscard]] Status launch_move_fragments(const MoveFragmentsParams& params, DeviceStream stream);
[[nodiscard]] Status launch_finish_checksums(const FinishChecksumsParams& params, DeviceStream stream);

}  // namespace quire
