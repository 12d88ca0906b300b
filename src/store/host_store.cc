// SPDX-License-Identifier: Apache-2.0
#include "store/host_store.h"

#include <algorithm>
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

// What of a page goes from one place to another.
struct HostStore::PartCopy {
  const Part& part;
  const PoolGeometry& geometry;
  std::byte* on_host = nullptr;    // where the part begins in the record
  std::byte* on_device = nullptr;  // where the page begins in the part's pool
  LayerRange layers;               // of the part
};

LayerRange HostStore::Part::common(LayerRange layers) const {
  const std::uint32_t first = std::max(layers.first, first_layer);
  const std::uint32_t end = std::min(layers.first + layers.count, first_layer + layer_count);
  return first < end ? LayerRange{.first = first - first_layer, .count = end - first} : LayerRange{};
}

Result<HostStore::PageFacts> HostStore::make_facts(std::uint32_t page_count) {
  PageFacts facts;
  QUIRE_TRY_ASSIGN(facts.claims, LazyArray<std::uint32_t>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.states, LazyArray<State>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.generations, LazyArray<std::uint32_t>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.name_tags, LazyArray<std::uint64_t>::create(page_count));
  QUIRE_TRY_ASSIGN(facts.checksums, LazyArray<std::uint64_t>::create(page_count));
  return facts;
}

// Knows its sizes, and has nowhere to put anything.
Result<std::unique_ptr<HostStore>> HostStore::without_memory(const HostStoreConfig& config) {
  constexpr std::uint64_t kAlignment = 64;
  std::string sizes = std::to_string(config.page_count) + " pages of";
  for (const RecordPart& part : config.parts) {
    if (&part != config.parts.data()) sizes += " and";
    sizes += " " + std::to_string(part.layer_count) + " layers of " + std::to_string(part.layer_bytes) + " bytes";
  }
  const auto too_large = [&] {
    return fail(ErrorCode::InvalidArgument, "a host tier of " + sizes + " is more than memory can address");
  };
  auto store = std::unique_ptr<HostStore>(new HostStore);
  for (const RecordPart& part : config.parts) {
    const auto bytes = checked_multiply(part.layer_bytes, part.layer_count);
    const auto page_bytes = bytes ? checked_add(store->page_bytes_, *bytes) : std::nullopt;
    if (!page_bytes || part.layer_count > UINT32_MAX - store->layer_count_) return too_large();
    if (*bytes == 0) break;
    store->parts_.push_back({.offset = store->page_bytes_,
                             .layer_bytes = part.layer_bytes,
                             .first_layer = store->layer_count_,
                             .layer_count = part.layer_count});
    store->page_bytes_ = *page_bytes;
    store->layer_count_ += part.layer_count;
  }
  if (config.parts.empty() || store->parts_.size() != config.parts.size() || config.page_count == 0) {
    return fail(ErrorCode::InvalidArgument, "a host tier of " + sizes + (config.parts.empty() ? " nothing" : "") +
                                                ": give it pages with bytes in them");
  }
  const auto padded = checked_add(store->page_bytes_, kAlignment - 1);
  store->record_bytes_ = padded ? *padded / kAlignment * kAlignment : 0;
  if (!padded || !checked_multiply(store->record_bytes_, config.page_count)) return too_large();
  store->page_count_ = config.page_count;
  store->has_checksums_ = config.checksums;
  return store;
}

Result<std::uint64_t> HostStore::memory_bytes(const HostStoreConfig& config) {
  QUIRE_TRY_ASSIGN(const std::unique_ptr<HostStore> store, without_memory(config));
  return store->record_bytes_ * store->page_count_;
}

Result<std::unique_ptr<HostStore>> HostStore::open(const HostStoreConfig& config, const RegionCalls& calls) {
  QUIRE_TRY_ASSIGN(std::unique_ptr<HostStore> store, without_memory(config));
  store->records_ = config.memory;
  if (config.memory == nullptr) {
    const std::uint64_t bytes = store->record_bytes_ * store->page_count_;
    QUIRE_TRY_ASSIGN(store->region_, HostRegion::map(bytes, config.region, calls));
    store->records_ = store->region_.data();
  }
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
  if (piece.layers.first + piece.layers.count == layer_count_) {
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
  const bool is_last = piece.layers.first + piece.layers.count == layer_count_;
  if (is_last && has_checksums_ && sum.finish(page_bytes_) != facts_.checksums[index]) {
    return TransferFault::Checksum;
  }
  return TransferFault::None;
}

TransferFault HostStore::write_page(std::span<const DevicePages> device, const PageTransfer& page) {
  ChecksumPart sum;
  return write_layers(whole(device, page), sum);
}

TransferFault HostStore::read_page(std::span<const DevicePages> device, const PageTransfer& page) {
  ChecksumPart sum;
  return read_layers(whole(device, page), sum);
}

PagePiece HostStore::whole(std::span<const DevicePages> device, const PageTransfer& page) const {
  return {.device = device, .page = page, .layers = {.first = 0, .count = layer_count_}};
}

std::uint32_t HostStore::index_of(PageId host_page) const {
  QUIRE_CHECK(host_page.value - 1 < page_count_, "the host tier has no such page");
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
  out.checksum = has_checksums_ ? std::optional(facts_.checksums[index]) : std::nullopt;
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
  if (region_.data() != nullptr) QUIRE_TRY(region_.forget());
  // Enough, since whoever looks at a page looks at this first, and it cannot fail.
  std::fill_n(facts_.states.data(), facts_.states.size(), State::NoData);
  return {};
}

std::uint64_t HostStore::bytes_of(LayerRange layers) const {
  std::uint64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.common(layers).count * part.layer_bytes;
  return bytes;
}

// Mistakes of the caller stop the program: they would write where nobody looks for it.
std::uint32_t HostStore::index_of(const PagePiece& piece) const {
  QUIRE_CHECK(piece.device.size() == parts_.size(), "pages of the device and of the host tier have other parts");
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const PoolGeometry& geometry = *piece.device[i].geometry;
    QUIRE_CHECK(piece.page.device_page.value < geometry.page_count(), "the device has no such page");
    QUIRE_CHECK(geometry.page().layer_bytes() == parts_[i].layer_bytes &&
                    geometry.page().layer_count() == parts_[i].layer_count,
                "pages of the device and of the host tier differ");
  }
  QUIRE_CHECK(piece.layers.count != 0 && piece.layers.first < layer_count_ &&
                  piece.layers.count <= layer_count_ - piece.layers.first,
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
  std::byte* const on_host = record(piece.page.host_page.value - 1);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const LayerRange layers = parts_[i].common(piece.layers);
    if (layers.count == 0) continue;
    const PoolGeometry& geometry = *piece.device[i].geometry;
    copy_part({.part = parts_[i],
               .geometry = geometry,
               .on_host = on_host + parts_[i].offset,
               .on_device = piece.device[i].memory + (piece.page.device_page.value * geometry.strides().page),
               .layers = layers},
              access, sum);
  }
  best_checked_copier().settle();
}

void HostStore::copy_part(const PartCopy& copy, Access access, ChecksumPart& sum) const {
  const CheckedCopier& copier = best_checked_copier();
  const std::uint64_t layer_bytes = copy.part.layer_bytes;
  const std::uint64_t layer_stride = copy.geometry.strides().layer;
  // Layers of a page that lie one behind the other go in one stretch.
  const bool is_one_stretch = copy.geometry.byte_layout() == ByteLayout::PageFirst;
  const std::uint32_t stretch_count = is_one_stretch ? 1 : copy.layers.count;
  const std::uint64_t stretch_bytes = layer_bytes * (copy.layers.count / stretch_count);
  // Nobody looks at a host page soon. Of a device page the engine is waiting for.
  const bool is_write = access == Access::Write;
  for (std::uint32_t i = 0; i < stretch_count; ++i) {
    const std::uint64_t layer = copy.layers.first + i;
    std::byte* const host_stretch = copy.on_host + (layer * layer_bytes);
    std::byte* const device_stretch = copy.on_device + (layer * layer_stride);
    const std::uint64_t to_next = i + 1 < stretch_count ? is_write ? layer_stride : layer_bytes : 0;
    const CopyPart part{.target = is_write ? host_stretch : device_stretch,
                        .source = is_write ? device_stretch : host_stretch,
                        .bytes = stretch_bytes,
                        .offset = copy.part.offset + (layer * layer_bytes),
                        .next_use = is_write ? NextUse::Later : NextUse::Soon,
                        .next_source = to_next == 0 ? nullptr : (is_write ? device_stretch : host_stretch) + to_next};
    if (has_checksums_) {
      sum.add(copier.copy_summed(part));
    } else {
      copier.copy(part);
    }
  }
}

}  // namespace quire
