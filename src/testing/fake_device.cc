// SPDX-License-Identifier: Apache-2.0
#include "testing/fake_device.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_poison_memory_region(const volatile void* begin, std::size_t bytes);
extern "C" void __asan_unpoison_memory_region(const volatile void* begin, std::size_t bytes);
#endif

namespace quire::testing {
namespace {

constexpr std::size_t kAlignment = 256;

void set_poisoned([[maybe_unused]] std::byte* memory, [[maybe_unused]] std::size_t bytes,
                  [[maybe_unused]] bool is_poisoned) {
#if defined(__SANITIZE_ADDRESS__)
  (is_poisoned ? __asan_poison_memory_region : __asan_unpoison_memory_region)(memory, bytes);
#endif
}

// The registered or allocated range that has these bytes, if one has all of them.
template <typename Ranges>
auto find_range(const Ranges& ranges, const std::byte* data, std::size_t bytes) {
  auto it = ranges.upper_bound(data);
  if (it == ranges.begin()) return ranges.end();
  --it;
  const auto begin = static_cast<std::size_t>(data - it->first);
  return begin <= it->second.bytes && bytes <= it->second.bytes - begin ? it : ranges.end();
}

}  // namespace

FakeDevice::FakeDevice(const FakeDeviceConfig& config)
    : config_(config), name_("fake device " + std::to_string(config.index)), draws_(config.seed) {
  steps_per_rank_ = std::uint64_t{1} << (2 * (draws_() % 4));
}

FakeDevice::~FakeDevice() {
  guard_memory(false);
  for (std::byte* const memory : allocated_) std::free(memory);
}

void FakeDevice::adopt(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  device_memory_[memory.data()] = {.bytes = memory.size()};
}

Status FakeDevice::launch(std::vector<std::span<const std::byte>> touched, std::function<void()> run,
                          DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("launching a kernel"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  ++kernel_count_;
  on->queue.push_back({.run = [this, touched = std::move(touched), run = std::move(run)] {
    for (const std::span<const std::byte> memory : touched) {
      QUIRE_CHECK(memory.empty() || is_device_memory(memory.data(), memory.size()),
                  "a kernel touches what is not the device's memory");
    }
    run();
  }});
  return {};
}

void FakeDevice::fail_call_after(std::uint64_t call_count) {
  const std::lock_guard lock(mutex_);
  failing_call_ = calls_ + call_count;
  fails_from_then_on_ = false;
}

void FakeDevice::fail_calls_from(std::uint64_t call_count) {
  const std::lock_guard lock(mutex_);
  failing_call_ = calls_ + call_count;
  fails_from_then_on_ = true;
}

std::uint64_t FakeDevice::call_count() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

void FakeDevice::hold(bool is_held) {
  const std::lock_guard lock(mutex_);
  is_held_ = is_held;
}

void FakeDevice::drain() {
  const std::lock_guard lock(mutex_);
  while (run_one()) {
  }
}

std::size_t FakeDevice::pending_count() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& stream : streams_) count += stream->queue.size();
  return count;
}

std::size_t FakeDevice::leak_count() const {
  const std::lock_guard lock(mutex_);
  return allocated_.size() + registered_.size() + streams_.size() + events_.size();
}

std::uint64_t FakeDevice::copied_bytes() const {
  const std::lock_guard lock(mutex_);
  return copied_bytes_;
}

std::uint64_t FakeDevice::kernel_count() const {
  const std::lock_guard lock(mutex_);
  return kernel_count_;
}

Status FakeDevice::may_fail(const char* what) {
  const std::uint64_t call = calls_++;
  if (fails_from_then_on_ ? call < failing_call_ : call != failing_call_) return {};
  if (fails_from_then_on_) {
    for (const auto& stream : streams_) stream->queue.clear();
  }
  return fail(ErrorCode::Io, std::string(what) + ": the device was told to fail");
}

Result<std::byte*> FakeDevice::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("allocating"));
  const std::size_t room = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (room > config_.memory_bytes_max - memory_bytes_) {
    return fail(ErrorCode::Unavailable, "allocating " + std::to_string(bytes) + " bytes on " + name_ + ": " +
                                            std::to_string(config_.memory_bytes_max - memory_bytes_) + " are free");
  }
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, room));
  QUIRE_CHECK(memory != nullptr, "there is no memory for a test");
  std::memset(memory, 0, room);
  memory_bytes_ += room;
  allocated_.push_back(memory);
  device_memory_[memory] = {.bytes = room};
  if (config_.guards_memory) set_poisoned(memory, room, true);
  return memory;
}

void FakeDevice::release(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find(allocated_, memory);
  QUIRE_CHECK(it != allocated_.end(), "memory is released that the device did not give, or twice");
  while (run_one()) {  // as cudaFree does: nothing of it is used any more
  }
  const std::size_t room = device_memory_.at(memory).bytes;
  set_poisoned(memory, room, false);
  memory_bytes_ -= room;
  device_memory_.erase(memory);
  allocated_.erase(it);
  std::free(memory);
}

Status FakeDevice::register_host(std::span<std::byte> memory, std::size_t unit_bytes) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("registering"));
  QUIRE_CHECK(std::bit_cast<std::uintptr_t>(memory.data()) % 4096 == 0 && memory.size() % 4096 == 0,
              "registered memory begins or ends inside a page of the system");
  QUIRE_CHECK(!registered_.contains(memory.data()), "memory is registered twice");
  registered_[memory.data()] = {.bytes = memory.size(), .unit_bytes = unit_bytes};
  return {};
}

void FakeDevice::unregister_host(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  QUIRE_CHECK(registered_.erase(memory.data()) == 1, "memory is unregistered that is not registered");
}

Result<DeviceStream> FakeDevice::create_stream(StreamPriority priority) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("making a stream"));
  const auto& made = streams_.emplace_back(std::make_unique<Stream>());
  made->rank = draws_();
  made->priority = priority;
  return DeviceStream{made.get()};
}

void FakeDevice::destroy_stream(DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find(streams_, stream.handle, &std::unique_ptr<Stream>::get);
  QUIRE_CHECK(it != streams_.end(), "a stream is destroyed that the device does not have");
  run_all_of(**it);
  streams_.erase(it);
}

std::size_t FakeDevice::stream_count(StreamPriority priority) const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(streams_, [&](const auto& stream) { return stream->priority == priority; }));
}

std::size_t FakeDevice::busy_stream_count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(
      std::ranges::count_if(streams_, [](const auto& stream) { return !stream->queue.empty(); }));
}

Result<DeviceEvent> FakeDevice::create_event() {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("making an event"));
  auto event = std::make_unique<Event>();
  Event* const handle = event.get();
  events_[handle] = std::move(event);
  return DeviceEvent{handle};
}

void FakeDevice::destroy_event(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  QUIRE_CHECK(events_.erase(static_cast<Event*>(event.handle)) == 1, "an event is destroyed that is not there");
}

Result<FakeDevice::Stream*> FakeDevice::stream_of(DeviceStream stream) {
  const auto it = std::ranges::find(streams_, stream.handle, &std::unique_ptr<Stream>::get);
  if (it == streams_.end()) return fail(ErrorCode::InvalidArgument, name_ + " has no such stream");
  return it->get();
}

Result<FakeDevice::Event*> FakeDevice::event_of(DeviceEvent event) {
  const auto it = events_.find(static_cast<Event*>(event.handle));
  if (it == events_.end()) return fail(ErrorCode::InvalidArgument, name_ + " has no such event");
  return it->first;
}

Status FakeDevice::record(DeviceEvent event, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("recording an event"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  QUIRE_TRY_ASSIGN(Event * recorded, event_of(event));
  recorded->last = std::make_shared<Recorded>();
  on->queue.push_back({.run = [last = recorded->last] { last->has_happened = true; }});
  return {};
}

Status FakeDevice::wait(DeviceStream stream, DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("waiting for an event"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  QUIRE_TRY_ASSIGN(const Event* waits_for, event_of(event));
  if (waits_for->last != nullptr) on->queue.push_back({.waits_for = waits_for->last});
  return {};
}

Result<bool> FakeDevice::has_happened(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("asking for an event"));
  QUIRE_TRY_ASSIGN(const Event* asked, event_of(event));
  if (!is_held_) run_some();
  return asked->last == nullptr || asked->last->has_happened;
}

Status FakeDevice::synchronize(DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("waiting for a stream"));
  QUIRE_TRY_ASSIGN(const Stream* waited, stream_of(stream));
  run_all_of(*waited);
  return {};
}

bool FakeDevice::is_device_memory(const std::byte* data, std::size_t bytes) const {
  return find_range(device_memory_, data, bytes) != device_memory_.end();
}

bool FakeDevice::is_registered(const std::byte* data, std::size_t bytes) const {
  return find_range(registered_, data, bytes) != registered_.end();
}

bool FakeDevice::is_one_registered_piece(const std::byte* data, std::size_t bytes) const {
  const auto it = find_range(registered_, data, bytes);
  if (it == registered_.end()) return false;
  const auto begin = static_cast<std::size_t>(data - it->first);
  return bytes == 0 || begin / it->second.unit_bytes == (begin + bytes - 1) / it->second.unit_bytes;
}

Status FakeDevice::check_copy(const std::byte* target, const std::byte* source, std::size_t bytes) const {
  for (const std::byte* const end : {target, source}) {
    if (is_device_memory(end, bytes) || is_one_registered_piece(end, bytes)) continue;
    return fail(ErrorCode::InvalidArgument, "copying " + std::to_string(bytes) +
                                                " bytes: one end is neither device memory nor one registered piece");
  }
  return {};
}

Status FakeDevice::copy(std::byte* target, const std::byte* source, std::size_t bytes, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("copying"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  QUIRE_TRY(check_copy(target, source, bytes));
  copied_bytes_ += bytes;
  on->queue.push_back({.run = [=, this] { run_copy(target, source, bytes); }});
  return {};
}

Status FakeDevice::copy_all(const CopyList& copies, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("copying"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  std::vector<std::size_t> order(copies.bytes.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    QUIRE_TRY(check_copy(copies.targets[i], copies.sources[i], copies.bytes[i]));
    order[i] = i;
  }
  std::ranges::shuffle(order, draws_);
  for (const std::size_t i : order) {
    copied_bytes_ += copies.bytes[i];
    on->queue.push_back({.run = [this, target = copies.targets[i], source = copies.sources[i],
                                 bytes = copies.bytes[i]] { run_copy(target, source, bytes); }});
  }
  return {};
}

void FakeDevice::run_copy(std::byte* target, const std::byte* source, std::size_t bytes) {
  QUIRE_CHECK(check_copy(target, source, bytes), "a copy runs after its memory was given back");
  std::memcpy(target, source, bytes);
}

// When it runs: what it names is device memory by then, and was written by what came before.
void FakeDevice::check_fragments(const MoveFragmentsParams& params) const {
  const auto* const fragments = reinterpret_cast<const std::byte*>(params.fragments.data());
  const auto* const sums = reinterpret_cast<const std::byte*>(params.sums.data());
  const auto* const items = reinterpret_cast<const std::byte*>(params.items.data());
  const std::size_t item_bytes = params.items.size_bytes();
  QUIRE_CHECK(is_device_memory(fragments, params.fragments.size_bytes()) &&
                  (params.sums.empty() || is_device_memory(sums, params.sums.size_bytes())) &&
                  (is_device_memory(items, item_bytes) || is_registered(items, item_bytes)),
              "a kernel reads fragments, items or sums where there is no memory that it reaches");
  for (std::size_t i = 0; i < params.items.size(); ++i) {
    const SwapItem& item = params.items[i];
    for (const Fragment& fragment : params.fragments) {
      const std::byte* const on_device = fragment.first + (item.device_page * fragment.page_stride);
      QUIRE_CHECK(is_device_memory(on_device, fragment.bytes), "a kernel goes beside the device's memory");
      std::uint64_t bits = std::bit_cast<std::uintptr_t>(on_device) | fragment.bytes | fragment.record_offset;
      if (params.way != FragmentWay::SumOnly) {
        const std::uint64_t record_index = params.record_order == RecordOrder::ByItem ? i : item.host_page;
        const std::byte* const in_record =
            params.records + (record_index * params.record_stride) + (fragment.record_offset - params.record_begin);
        QUIRE_CHECK(is_device_memory(in_record, fragment.bytes) || is_registered(in_record, fragment.bytes),
                    "a kernel goes beside the records");
        bits |= std::bit_cast<std::uintptr_t>(in_record);
      }
      QUIRE_CHECK(bits % params.access_bytes == 0, "an access of a kernel does not fit an address");
    }
  }
}

void FakeDevice::check_results(const FinishChecksumsParams& params) const {
  const auto is_known = [this](const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    return is_device_memory(begin, bytes) || is_registered(begin, bytes);
  };
  QUIRE_CHECK(params.items.empty() || (is_known(params.items.data(), params.items.size_bytes()) &&
                                       is_known(params.sums.data(), params.sums.size_bytes()) &&
                                       is_known(params.checksums.data(), params.items.size() * sizeof(std::uint64_t))),
              "a kernel goes beside items or checksums");
  QUIRE_CHECK(params.first_bad == nullptr || is_known(params.first_bad, sizeof(std::uint64_t)),
              "a kernel writes where there is no memory");
}

Status FakeDevice::move_fragments(const MoveFragmentsParams& params, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("launching a kernel"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  QUIRE_CHECK(params.block_count_max > 0, "a kernel of no blocks");
  ++kernel_count_;
  on->queue.push_back({.run = [this, params] {
    check_fragments(params);
    if (params.finish) {
      check_results(*params.finish);
      QUIRE_CHECK(is_device_memory(reinterpret_cast<const std::byte*>(params.blocks_done), sizeof(std::uint32_t)),
                  "a kernel counts its blocks where there is no device memory");
    }
    move_fragments_on_host(params);
  }});
  return {};
}

Status FakeDevice::finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  QUIRE_TRY(may_fail("launching a kernel"));
  QUIRE_TRY_ASSIGN(Stream * on, stream_of(stream));
  ++kernel_count_;
  on->queue.push_back({.run = [this, params] {
    check_results(params);
    finish_checksums_on_host(params);
  }});
  return {};
}

// One piece of work that nothing holds back, of a stream that is drawn. False when there is none.
bool FakeDevice::run_one() {
  std::vector<Stream*> ready;
  for (const auto& stream : streams_) {
    auto& queue = stream->queue;
    while (!queue.empty() && queue.front().waits_for != nullptr && queue.front().waits_for->has_happened) {
      queue.pop_front();
    }
    if (!queue.empty() && queue.front().waits_for == nullptr) ready.push_back(stream.get());
  }
  if (ready.empty()) return false;
  if (draws_() % steps_per_rank_ == 0) ready[draws_() % ready.size()]->rank = draws_();
  Stream* const stream = *std::ranges::max_element(ready, {}, &Stream::rank);
  const Work work = std::move(stream->queue.front());
  stream->queue.pop_front();
  guard_memory(false);
  work.run();
  guard_memory(true);
  return true;
}

void FakeDevice::run_all_of(const Stream& stream) {
  while (!stream.queue.empty()) {
    // Waits that are over leave the queue without having been run.
    QUIRE_CHECK(run_one() || stream.queue.empty(), "streams wait for each other");
  }
}

void FakeDevice::guard_memory(bool is_guarded) {
  if (!config_.guards_memory) return;
  for (std::byte* const memory : allocated_) set_poisoned(memory, device_memory_.at(memory).bytes, is_guarded);
}

void FakeDevice::run_some() {
  for (std::uint64_t left = draws_() % 8; left > 0 && run_one(); --left) {
  }
}

}  // namespace quire::testing
