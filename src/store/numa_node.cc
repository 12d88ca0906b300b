// SPDX-License-Identifier: Apache-2.0
#include "store/numa_node.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <memory>

namespace quire {
namespace {

// More than any machine has, so that a list cannot ask for all memory.
constexpr std::uint32_t kProcessorCountMax = 1U << 16U;
constexpr std::uint32_t kNodeCountMax = 1U << 10U;
constexpr std::size_t kTextBytesMax = 4096;

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using ProcessorSet = std::unique_ptr<cpu_set_t, FreeSet>;

std::string read_file(const std::string& path) {
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return {};
  std::array<char, kTextBytesMax> text{};
  const std::size_t bytes = std::fread(text.data(), 1, text.size(), file.get());
  return bytes < text.size() ? std::string(text.data(), bytes) : std::string();  // a part would be something else
}

// The kernel refuses a set that is smaller than its own.
std::vector<std::uint32_t> read_affinity() {
  for (std::uint32_t count = CPU_SETSIZE; count <= kProcessorCountMax; count *= 2) {
    const ProcessorSet set(CPU_ALLOC(count));
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    if (set == nullptr) return {};
    CPU_ZERO_S(bytes, set.get());
    if (::sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno != EINVAL) return {};
      continue;
    }
    std::vector<std::uint32_t> processors;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (CPU_ISSET_S(i, bytes, set.get())) processors.push_back(i);
    }
    return processors;
  }
  return {};
}

int set_affinity(pthread_t thread, std::span<const std::uint32_t> processors) {
  const std::uint32_t count = std::max<std::uint32_t>(CPU_SETSIZE, processors.empty() ? 0 : processors.back() + 1);
  const ProcessorSet set(CPU_ALLOC(count));
  if (set == nullptr) return ENOMEM;
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set.get());
  for (const std::uint32_t processor : processors) CPU_SET_S(processor, bytes, set.get());
  return ::pthread_setaffinity_np(thread, bytes, set.get());
}

std::string_view without_newline(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// All of the text, in decimal digits only.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// It becomes part of a path.
bool is_pci_bus_id(std::string_view id) {
  return !id.empty() && id.size() <= 32 && id.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos &&
         id.find("..") == std::string_view::npos && id.front() != '.';
}

}  // namespace

const NumaCalls& NumaCalls::real() {
  static constexpr NumaCalls kCalls{
      .read_text = read_file, .allowed_processors = read_affinity, .bind_thread = set_affinity};
  return kCalls;
}

std::optional<std::vector<std::uint32_t>> parse_processor_list(std::string_view text) {
  text = without_newline(text);
  std::vector<std::uint32_t> processors;
  std::uint32_t next = 0;  // the lowest that may follow
  for (bool has_more = true; has_more;) {
    const std::size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    has_more = comma != std::string_view::npos;
    text.remove_prefix(has_more ? comma + 1 : text.size());
    const std::size_t dash = range.find('-');
    const std::optional<std::uint32_t> first = parse_number<std::uint32_t>(range.substr(0, dash));
    const std::optional<std::uint32_t> last =
        dash == std::string_view::npos ? first : parse_number<std::uint32_t>(range.substr(dash + 1));
    if (!first || !last || *first < next || *last < *first || *last >= kProcessorCountMax) return std::nullopt;
    for (std::uint32_t i = *first; i <= *last; ++i) processors.push_back(i);
    next = *last + 1;
  }
  return processors;
}

std::optional<std::uint32_t> find_numa_node(std::string_view pci_bus_id, const NumaCalls& calls) {
  if (!is_pci_bus_id(pci_bus_id)) return std::nullopt;
  std::string id(pci_bus_id);  // /sys has small letters, and CUDA large ones
  for (char& letter : id) letter = letter >= 'A' && letter <= 'F' ? static_cast<char>(letter - 'A' + 'a') : letter;
  const std::string text = calls.read_text("/sys/bus/pci/devices/" + id + "/numa_node");
  const std::optional<std::int64_t> node = parse_number<std::int64_t>(without_newline(text));
  if (!node || *node < 0 || *node >= kNodeCountMax) return std::nullopt;  // -1: the system does not know
  return static_cast<std::uint32_t>(*node);
}

std::optional<std::vector<std::uint32_t>> processors_of_node(std::uint32_t numa_node, const NumaCalls& calls) {
  const std::string text = calls.read_text("/sys/devices/system/node/node" + std::to_string(numa_node) + "/cpulist");
  const std::optional<std::vector<std::uint32_t>> of_node = parse_processor_list(text);
  if (!of_node) return std::nullopt;
  std::vector<std::uint32_t> allowed = calls.allowed_processors();
  std::ranges::sort(allowed);
  std::vector<std::uint32_t> both;
  std::ranges::set_intersection(*of_node, allowed, std::back_inserter(both));
  return both;
}

}  // namespace quire
