// SPDX-License-Identifier: Apache-2.0
//
// A plan as bytes: a head of 32 bytes, then its pages as they lie in memory. In the byte order of the machine: the
// magic number reads differently on one with another order.
//
//     0  magic      4  version    6  bands     8  kind   9  priority   10  pool   12  0 (4 bytes)
//    16  id: index, generation   24  page count          28  0
//    32  pages, 24 bytes each
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "quire/transfer.h"

namespace quire {
namespace {

constexpr std::uint32_t kMagic = 0x31505451;  // "QTP1", lowest byte first
constexpr std::uint16_t kVersion = 2;         // 1 had no pool
constexpr std::size_t kAlignment = 8;

struct Head {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t band_count = 0;
  std::uint8_t kind = 0;
  std::uint8_t priority = 0;
  std::uint16_t pool_index = 0;
  std::array<std::uint8_t, 4> zeros{};
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  std::uint32_t page_count = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(Head) == 32 && std::has_unique_object_representations_v<Head>);
static_assert(sizeof(PageTransfer) == 24 && alignof(PageTransfer) <= kAlignment &&
              std::is_trivially_copyable_v<PageTransfer>);

bool is_aligned(const std::byte* bytes) {
  return reinterpret_cast<std::uintptr_t>(bytes) % kAlignment == 0;
}

// What no plan may say; empty when there is nothing of it.
std::string wrong_in(const Head& head) {
  if (head.kind > static_cast<std::uint8_t>(TransferKind::Store))
    return "there is no kind " + std::to_string(head.kind);
  if (head.priority > static_cast<std::uint8_t>(TransferPriority::Background)) {
    return "there is no priority " + std::to_string(head.priority);
  }
  return head.band_count == 0 ? "it has 0 bands" : "";
}

tl::unexpected<Error> corrupt(const std::string& what) {
  return fail(ErrorCode::Corrupt, "decoding a transfer plan: " + what);
}

Status check_head(const Head& head) {
  if (head.magic != kMagic) return corrupt("the bytes are none, or of a machine with another byte order");
  if (head.version != kVersion) {
    return fail(ErrorCode::Unsupported, "decoding a transfer plan: it has version " + std::to_string(head.version) +
                                            ", and this build reads version " + std::to_string(kVersion));
  }
  if (const std::string wrong = wrong_in(head); !wrong.empty()) return corrupt(wrong);
  if (head.zeros != decltype(head.zeros){} || head.zero != 0) return corrupt("bytes that must be 0 are not");
  return {};
}

}  // namespace

std::size_t encoded_bytes(std::size_t page_count) {
  return sizeof(Head) + (page_count * sizeof(PageTransfer));
}

Result<std::span<std::byte>> encode(const TransferPlan& plan, std::span<std::byte> out) {
  if (plan.pages.size() > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::InvalidArgument,
                "encoding a transfer plan of " + std::to_string(plan.pages.size()) + " pages: give it fewer");
  }
  const std::size_t bytes = encoded_bytes(plan.pages.size());
  if (out.size() < bytes) {
    return fail(ErrorCode::InvalidArgument, "encoding a transfer plan of " + std::to_string(plan.pages.size()) +
                                                " pages: it takes " + std::to_string(bytes) + " bytes, and there are " +
                                                std::to_string(out.size()));
  }
  const Head head{.band_count = plan.band_count,
                  .kind = static_cast<std::uint8_t>(plan.kind),
                  .priority = static_cast<std::uint8_t>(plan.priority),
                  .pool_index = plan.pool_index,
                  .index = plan.id.index,
                  .generation = plan.id.generation,
                  .page_count = static_cast<std::uint32_t>(plan.pages.size())};
  if (const std::string wrong = wrong_in(head); !wrong.empty()) {
    return fail(ErrorCode::InvalidArgument, "encoding a transfer plan: " + wrong);
  }
  std::memcpy(out.data(), &head, sizeof(head));
  if (!plan.pages.empty()) std::memcpy(out.data() + sizeof(head), plan.pages.data(), plan.pages.size_bytes());
  return out.first(bytes);
}

Result<TransferPlan> decode(std::span<const std::byte> bytes) {
  if (!is_aligned(bytes.data())) {
    return fail(ErrorCode::InvalidArgument, "decoding a transfer plan: its bytes must be aligned to 8");
  }
  Head head;
  if (bytes.size() < sizeof(head)) {
    return corrupt(std::to_string(bytes.size()) + " bytes are less than the head of one");
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  QUIRE_TRY(check_head(head));
  if ((bytes.size() - sizeof(head)) / sizeof(PageTransfer) < head.page_count) {
    return corrupt(std::to_string(head.page_count) + " pages do not fit in " + std::to_string(bytes.size()) + " bytes");
  }
  const std::span pages(reinterpret_cast<const PageTransfer*>(bytes.data() + sizeof(head)), head.page_count);
  return TransferPlan{.id = {.index = head.index, .generation = head.generation},
                      .kind = static_cast<TransferKind>(head.kind),
                      .priority = static_cast<TransferPriority>(head.priority),
                      .band_count = head.band_count,
                      .pool_index = head.pool_index,
                      .pages = pages};
}

}  // namespace quire
