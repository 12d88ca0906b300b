// SPDX-License-Identifier: Apache-2.0
#include "store/host_store.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

namespace quire {

namespace {

constexpr std::uint32_t kWriter = UINT32_MAX;
constexpr std::uint32_t kReadersMax = UINT32_MAX - 1;

}  // namespace

// A place at one page: for one writer, or for any number of readers. Never waits.
bool HostStore::try_claim(std::uint32_t index, Access access) {
  const std::atomic_ref<std::uint32_t> word(facts_.claims[index]);
  std::uint32_t seen = word.load(std::memory_order_relaxed);
  do {
    if (access == Access::Write ? seen != 0 : seen >= kReadersMax) return false;
  } while (!word.compare_exchange_weak(seen, access == Access::Write ? kWriter : seen + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed));
  return true;
}

void HostStore::release_claim(std::uint32_t index, Access access) {
  const std::atomic_ref<std::uint32_t> word(facts_.claims[index]);
  if (access == Access::Write) {
    word.store(0, std::memory_order_release);
  } else {
    word.fetch_sub(1, std::memory_order_release);
  }
}

// Until the end of a scope.
class HostStore::Claim {
 public:
  Claim(HostStore& store, std::uint32_t index, Access access)
      : store_(store), index_(index), access_(access), is_held_(store.try_claim(index, access)) {}
  ~Claim() {
    if (is_held_) store_.release_claim(index_, access_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  [[nodiscard]] bool is_held() const { return is_held_; }

 private:
  HostStore& store_;
  std::uint32_t index_;
  Access access_;
  bool is_held_;
};

HostStore::HostStore(const HostStoreConfig& config) : config_(config) {}

Result<HostStore::PageFacts> HostStore::make_facts(std::uint32_t page_count) {
  PageFacts facts;
  QUIRE_TRY_ASSIGN(facts.claims, LazyArray<std::uint32_t>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.states, LazyArray<State>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.generations, LazyArray<std::uint32_t>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.name_tags, LazyArray<std::uint64_t>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.checksums, LazyArray<std::uint64_t>::create(page_count));
  return facts;
}

Result<std::unique_ptr<HostStore>> HostStore::open(const HostStoreConfig& config, const RegionCalls& calls) {
  constexpr std::uint64_t kAlignment = 64;
  const std::string sizes = std::to_string(config.page_count) + " pages of " + std::to_string(config.layer_count) +
                            " layers of " + std::to_string(config.layer_bytes) + " bytes";
  const auto page_bytes = checked_multiply(config.layer_bytes, config.layer_count);
  if (!page_bytes || *page_bytes == 0 || config.page_count == 0) {
    return fail(ErrorCode::InvalidArgument, "a host tier of " + sizes + ": give it pages with bytes in them");
  }
  const auto padded = checked_add(*page_bytes, kAlignment - 1);
  const std::uint64_t record_bytes = padded ? *padded / kAlignment * kAlignment : 0;
  const auto bytes = checked_multiply(record_bytes, config.page_count);
  if (!padded || !bytes) {
    return fail(ErrorCode::InvalidArgument, "a host tier of " + sizes + " is more than memory can address");
  }
  auto store = std::unique_ptr<HostStore>(new HostStore(config));
  store->page_bytes_ = *page_bytes;
  store->record_bytes_ = record_bytes;
  QUIRE_TRY_ASSIGN(store->region_, HostRegion::map(*bytes, config.region, calls));
  QUIRE_TRY_ASSIGN(store->facts_, make_facts(config.page_count));
  return store;
}

TransferFault HostStore::write_layers(const PagePiece& piece, ChecksumPart& sum) {
  const std::uint32_t index = index_of(piece);
  const PageTransfer& page = piece.page;
  const Claim claim(*this, index, Access::Write);
  if (!claim.is_held()) return TransferFault::Io;
  if (piece.layers.first == 0) {
    facts_.states[index] = State::BeingWritten;  // Before the first byte: from here on the old page is gone.
    facts_.generations[index] = page.host_generation;
    facts_.name_tags[index] = page.name_tag;
  } else if (const TransferFault fault = fault_of(index, page, State::BeingWritten); fault != TransferFault::None) {
    return fault;
  }
  copy(piece, Access::Write, sum);
  if (piece.layers.first + piece.layers.count == config_.layer_count) {
    facts_.checksums[index] = sum.finish(page_bytes_);
    facts_.states[index] = State::HasData;
  }
  return TransferFault::None;
}

TransferFault HostStore::read_layers(const PagePiece& piece, ChecksumPart& sum) {
  const std::uint32_t index = index_of(piece);
  const Claim claim(*this, index, Access::Read);
  if (!claim.is_held()) return TransferFault::Generation;  // Somebody writes another page to it.
  // Before every piece, so that a page which was handed out between two of them is noticed without checksums too.
  if (const TransferFault fault = fault_of(index, piece.page, State::HasData); fault != TransferFault::None) {
    return fault;
  }
  copy(piece, Access::Read, sum);
  const bool is_last = piece.layers.first + piece.layers.count == config_.layer_count;
  if (is_last && config_.checksums && sum.finish(page_bytes_) != facts_.checksums[index]) {
    return TransferFault::Checksum;
  }
  return TransferFault::None;
}

TransferFault HostStore::write_page(const DevicePages& device, const PageTransfer& page) {
  ChecksumPart sum;
  return write_layers(whole(device, page), sum);
}

TransferFault HostStore::read_page(const DevicePages& device, const PageTransfer& page) {
  ChecksumPart sum;
  return read_layers(whole(device, page), sum);
}

PagePiece HostStore::whole(const DevicePages& device, const PageTransfer& page) const {
  return {.device = device, .page = page, .layers = {.first = 0, .count = config_.layer_count}};
}

std::uint32_t HostStore::index_of(PageId host_page) const {
  QUIRE_CHECK(host_page.value - 1 < config_.page_count, "the host tier has no such page");
  return host_page.value - 1;
}

TransferFault HostStore::begin_read(const PageTransfer& page, Record& out) {
  const std::uint32_t index = index_of(page.host_page);
  if (!try_claim(index, Access::Read)) return TransferFault::Generation;
  if (const TransferFault fault = fault_of(index, page, State::HasData); fault != TransferFault::None) {
    release_claim(index, Access::Read);
    return fault;
  }
  out.bytes = {record(index), page_bytes_};
  out.checksum = config_.checksums ? std::optional(facts_.checksums[index]) : std::nullopt;
  return TransferFault::None;
}

void HostStore::end_read(const PageTransfer& page) {
  release_claim(index_of(page.host_page), Access::Read);
}

TransferFault HostStore::begin_write(const PageTransfer& page, std::span<std::byte>& bytes) {
  const std::uint32_t index = index_of(page.host_page);
  if (!try_claim(index, Access::Write)) return TransferFault::Io;
  facts_.states[index] = State::BeingWritten;
  facts_.generations[index] = page.host_generation;
  facts_.name_tags[index] = page.name_tag;
  bytes = {record(index), page_bytes_};
  return TransferFault::None;
}

void HostStore::end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) {
  const std::uint32_t index = index_of(page.host_page);
  if (checksum) facts_.checksums[index] = *checksum;
  facts_.states[index] = checksum ? State::HasData : State::NoData;
  release_claim(index, Access::Write);
}

Status HostStore::forget() {
  QUIRE_TRY_ASSIGN(PageFacts facts, make_facts(config_.page_count));
  QUIRE_TRY(region_.forget());
  facts_ = std::move(facts);
  return {};
}

// Mistakes of the caller stop the program: they would write where nobody looks for it.
std::uint32_t HostStore::index_of(const PagePiece& piece) const {
  const PoolGeometry& geometry = *piece.device.geometry;
  QUIRE_CHECK(piece.page.device_page.value < geometry.page_count(), "the device has no such page");
  QUIRE_CHECK(
      geometry.page().layer_bytes() == config_.layer_bytes && geometry.page().layer_count() == config_.layer_count,
      "pages of the device and of the host tier differ");
  QUIRE_CHECK(piece.layers.count != 0 && piece.layers.first < config_.layer_count &&
                  piece.layers.count <= config_.layer_count - piece.layers.first,
              "the page has no such layers");
  return index_of(piece.page.host_page);
}

TransferFault HostStore::fault_of(std::uint32_t index, const PageTransfer& page, State wanted) const {
  if (facts_.states[index] != wanted || facts_.generations[index] != page.host_generation) {
    return TransferFault::Generation;
  }
  return facts_.name_tags[index] == page.name_tag ? TransferFault::None : TransferFault::NameTag;
}

void HostStore::copy(const PagePiece& piece, Access access, ChecksumPart& sum) const {
  const PoolGeometry& geometry = *piece.device.geometry;
  const CheckedCopier& copier = best_checked_copier();
  std::byte* const on_host = record(piece.page.host_page.value - 1);
  std::byte* const on_device = piece.device.memory + (piece.page.device_page.value * geometry.strides().page);
  // Layers of a page that lie one behind the other go in one part.
  const bool is_one_part = geometry.byte_layout() == ByteLayout::PageFirst;
  const std::uint32_t part_count = is_one_part ? 1 : piece.layers.count;
  const std::uint64_t part_bytes = config_.layer_bytes * (piece.layers.count / part_count);
  // Nobody looks at a host page soon. Of a device page the engine is waiting for.
  const bool is_write = access == Access::Write;
  for (std::uint32_t i = 0; i < part_count; ++i) {
    const std::uint64_t layer = piece.layers.first + i;
    std::byte* const host_part = on_host + (layer * config_.layer_bytes);
    std::byte* const device_part = on_device + (layer * geometry.strides().layer);
    const std::uint64_t to_next = i + 1 < part_count ? is_write ? geometry.strides().layer : config_.layer_bytes : 0;
    const CopyPart part{.target = is_write ? host_part : device_part,
                        .source = is_write ? device_part : host_part,
                        .bytes = part_bytes,
                        .offset = layer * config_.layer_bytes,
                        .next_use = is_write ? NextUse::Later : NextUse::Soon,
                        .next_source = to_next == 0 ? nullptr : (is_write ? device_part : host_part) + to_next};
    if (config_.checksums) {
      sum.add(copier.copy_summed(part));
    } else {
      copier.copy(part);
    }
  }
  copier.settle();
}

}  // namespace quire
