// SPDX-License-Identifier: Apache-2.0
//
// Questions. What is there decides only whether a path is loaded or computed, so a few names are asked for, in one
// round trip: extents 1, 2, 4, … of the path, and the last. Where some are there and some are not, those in between
// say where the path ends. A value that is gone all the same ends the load.
#include <algorithm>

#include "transfer/remote_mover_impl.h"

namespace quire {

const PageName& RemoteMover::Impl::extent_name(const Flight& flight, std::uint32_t extent) {
  return queue->path(flight.index)[flight.first_end + (extent * extent_pages(0))];
}

void RemoteMover::Impl::set_extent(Flight& flight, std::uint32_t object, std::uint32_t extent) {
  tags_of(flight)[object] = extent;
  (void)set_object(flight, object,
                   {.key_space = queue->records(flight.index)[0].key_space, .name = extent_name(flight, extent)});
}

// Questions of one find share its time.
void RemoteMover::Impl::ask_names(Flight& flight, Step step, std::uint32_t object_count) {
  count(&RemoteMoverStats::asked_names, object_count);
  submit(flight, {.step = step,
                  .is_path = step == Step::Window,
                  .object_count = object_count,
                  .timeout_ns = flight.start_ns + config.find_timeout_ns - now()});
}

void RemoteMover::Impl::begin_find(Flight& flight) {
  const LowerPlan& plan = flight.plan;
  const PageNames::Record& shared = queue->records(flight.index)[0];
  const auto page_count = static_cast<std::uint32_t>(plan.tokens.size() / config.names.page_tokens);
  const std::uint32_t held = std::min(plan.held_pages, page_count);
  const std::uint32_t step = extent_pages(0);
  std::ranges::fill(plan.anchored, 0);
  flight.named_pages = flight.extent_count = flight.found_extents = flight.path_pages = 0;
  if (shared.parent.is_none() || queue->is_dropping(shared.key_space) || queue->is_cancelled(flight.index)) {
    end_find(flight);
    return;
  }
  touch_before(flight);
  // The first extent that ends behind what is held, and how many end within the question from there on.
  flight.first_end = step - 1 - (shared.page_index % step);
  if (flight.first_end < held) flight.first_end += (held - flight.first_end + step - 1) / step * step;
  if (flight.first_end < page_count) flight.extent_count = ((page_count - 1 - flight.first_end) / step) + 1;
  const auto is_absent = [&](std::uint32_t extent) {
    return is_spared(0, extent_name(flight, extent), flight.start_ns);
  };
  const auto name_up_to = [&](std::uint32_t end) {
    queue->name_path(plan, flight.named_pages, end - flight.named_pages);
    flight.named_pages = end;
  };
  name_up_to(flight.extent_count > 0 ? flight.first_end + 1 : held);
  if (flight.extent_count > 0 && is_absent(0)) flight.extent_count = 0;
  if (flight.extent_count > 1) {
    name_up_to(flight.first_end + ((flight.extent_count - 1) * step) + 1);
    std::uint32_t extent = 1;
    while (extent < flight.extent_count && !is_absent(extent)) ++extent;
    flight.extent_count = extent;
  }
  if (flight.extent_count == 0) {
    end_path(flight);
    return;
  }
  std::uint32_t object_count = 0;
  for (std::uint64_t place = 1; place < flight.extent_count; place *= 2) {
    set_extent(flight, object_count++, static_cast<std::uint32_t>(place - 1));
  }
  set_extent(flight, object_count++, flight.extent_count - 1);
  ask_names(flight, Step::Probe, object_count);
}

// Whether the store need not be asked for a name.
bool RemoteMover::Impl::is_spared(std::uint32_t pool, const PageName& name, TimeNs at_ns) {
  if (!absent.has(pool, name, at_ns) && !bad.has(pool, name, at_ns)) return false;
  count(&RemoteMoverStats::spared_names);
  return true;
}

void RemoteMover::Impl::note_absent(const Flight& flight) {
  const TimeNs now_ns = now();
  for (std::size_t i = 0; i < flight.batch.objects.size(); ++i) {
    if (flight.batch.objects[i].outcome != RemoteOutcome::Absent) continue;
    absent.add(0, extent_name(flight, tags_of(flight)[i]), now_ns + kAbsentNs);
  }
}

void RemoteMover::Impl::end_probe(Flight& flight) {
  note_absent(flight);
  for (std::size_t i = 0; i < flight.batch.objects.size(); ++i) {
    const std::uint32_t extent = tags_of(flight)[i];
    const RemoteOutcome outcome = flight.batch.objects[i].outcome;
    if (outcome == RemoteOutcome::Ok) {
      flight.found_extents = extent + 1;
      continue;
    }
    flight.has_failed = outcome != RemoteOutcome::Absent;
    flight.window_end = extent;
    break;
  }
  const bool is_whole = flight.found_extents == flight.extent_count;
  if (queue->is_cancelled(flight.index)) {
    end_find(flight);
  } else if (is_whole || flight.has_failed || flight.found_extents == flight.window_end) {
    end_path(flight);
  } else {
    ask_window(flight);
  }
}

void RemoteMover::Impl::ask_window(Flight& flight) {
  const std::uint32_t count = std::min(kQuestionNamesMax, flight.window_end - flight.found_extents);
  for (std::uint32_t i = 0; i < count; ++i) set_extent(flight, i, flight.found_extents + i);
  ask_names(flight, Step::Window, count);
}

void RemoteMover::Impl::end_window(Flight& flight) {
  note_absent(flight);
  bool is_whole = true;
  for (const RemoteObject& object : flight.batch.objects) {
    is_whole = object.outcome == RemoteOutcome::Ok;
    if (!is_whole) {
      flight.has_failed = object.outcome != RemoteOutcome::Absent;
      break;
    }
    ++flight.found_extents;
  }
  if (queue->is_cancelled(flight.index)) {
    end_find(flight);
  } else if (is_whole && flight.found_extents < flight.window_end) {
    ask_window(flight);
  } else {
    end_path(flight);
  }
}

void RemoteMover::Impl::end_path(Flight& flight) {
  const auto page_count = static_cast<std::uint32_t>(flight.plan.tokens.size() / config.names.page_tokens);
  flight.path_pages = std::min(flight.plan.held_pages, page_count);
  if (flight.found_extents > 0) {
    flight.path_pages = flight.first_end + ((flight.found_extents - 1) * extent_pages(0)) + 1;
  }
  touch_path(flight);
  flight.next_anchored = 0;
  if (flight.plan.anchored.empty()) {
    end_find(flight);
  } else {
    ask_anchored(flight);
  }
}

// Later extents go first, so that a store that makes room takes the ends of paths before their beginnings. When there
// is too much of it, it is the beginning that is touched.
template <typename NameOf>
void RemoteMover::Impl::touch(const PageName& key_space, std::uint32_t extent_count, NameOf name_of) {
  const std::uint32_t batch_count = (extent_count + kQuestionNamesMax - 1) / kQuestionNamesMax;
  for (std::uint32_t batch = std::min(batch_count, kTouchFlightsMax); batch-- > 0;) {
    Flight* const flight = idle_background();
    if (flight == nullptr) return;
    const std::uint32_t begin = batch * kQuestionNamesMax;
    std::uint32_t object_count = 0;
    for (std::uint32_t extent = std::min(begin + kQuestionNamesMax, extent_count); extent-- > begin;) {
      const PageName& name = name_of(extent);
      if (!name.is_none()) (void)set_object(*flight, object_count++, {.key_space = key_space, .name = name});
    }
    if (object_count == 0) continue;
    submit(*flight, {.step = Step::Touch,
                     .priority = RemotePriority::Background,
                     .object_count = object_count,
                     .timeout_ns = config.store_timeout_ns});
  }
}

// The whole path counts as used: also what memory has of it, and what was not asked for.
void RemoteMover::Impl::touch_path(const Flight& flight) {
  const std::uint32_t step = extent_pages(0);
  const std::uint32_t first_end = flight.first_end % step;
  const std::uint32_t extent_count = (flight.path_pages + step - 1 - first_end) / step;
  if (extent_count == flight.found_extents && extent_count <= 2) return;  // all of them were asked for
  const std::span<const PageName> path = queue->path(flight.index);
  touch(queue->records(flight.index)[0].key_space, extent_count,
        [&](std::uint32_t extent) -> const PageName& { return path[first_end + (extent * step)]; });
}

void RemoteMover::Impl::touch_before(const Flight& flight) {
  const std::span<const NamedPage> before = flight.plan.before;
  touch(queue->records(flight.index)[0].key_space, static_cast<std::uint32_t>(before.size()),
        [&](std::uint32_t extent) -> const PageName& { return queue->name_of(before[extent]); });
}

// Pages of other groups, of each column of the path that is held or found, the last ones first: those are what a hit
// needs. Their number in this order is the tag of an object.
void RemoteMover::Impl::ask_anchored(Flight& flight) {
  const std::uint64_t total = std::uint64_t{flight.path_pages} * anchored.size();
  const PageName& key_space = queue->records(flight.index)[0].key_space;
  std::uint32_t object_count = 0;
  for (; flight.next_anchored < total && object_count < kQuestionNamesMax; ++flight.next_anchored) {
    const std::uint64_t page = flight.path_pages - 1 - (flight.next_anchored / anchored.size());
    const std::uint32_t pool = anchored[flight.next_anchored % anchored.size()];
    const PageName& name = queue->path(flight.index)[page];
    if (is_spared(pool, name, flight.start_ns)) continue;
    tags_of(flight)[object_count] = static_cast<std::uint32_t>(flight.next_anchored);
    (void)set_object(flight, object_count++, {.pool = pool, .key_space = key_space, .name = name});
  }
  if (object_count == 0) {
    end_find(flight);
  } else {
    ask_names(flight, Step::Anchored, object_count);
  }
}

void RemoteMover::Impl::end_anchored(Flight& flight) {
  const TimeNs now_ns = now();
  bool has_failed = false;
  for (std::size_t i = 0; i < flight.batch.objects.size(); ++i) {
    const std::uint32_t tag = tags_of(flight)[i];
    const std::uint64_t page = flight.path_pages - 1 - (tag / anchored.size());
    const std::uint32_t pool = anchored[tag % anchored.size()];
    const RemoteOutcome outcome = flight.batch.objects[i].outcome;
    if (outcome == RemoteOutcome::Ok) flight.plan.anchored[page] |= std::uint64_t{1} << (pool - 1);
    if (outcome == RemoteOutcome::Absent) absent.add(pool, queue->path(flight.index)[page], now_ns + kAbsentNs);
    has_failed = has_failed || (outcome != RemoteOutcome::Ok && outcome != RemoteOutcome::Absent);
  }
  if (has_failed || queue->is_cancelled(flight.index)) {
    end_find(flight);
  } else {
    ask_anchored(flight);
  }
}

void RemoteMover::Impl::end_find(Flight& flight) {
  Completion& completion = flight.completion;
  completion.good_pages = flight.path_pages - std::min(flight.path_pages, flight.plan.held_pages);
  completion.outcome = flight.path_pages > 0 ? TransferOutcome::Ok : TransferOutcome::Empty;
  if (completion.good_pages == 0 && flight.has_failed) set_failure(flight, TransferFault::Io);
  complete(flight);
}

}  // namespace quire
