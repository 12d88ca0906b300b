// SPDX-License-Identifier: Apache-2.0
//
// A cache whose device memory lies on an accelerator, its own or the engine's, with a host and a disk tier below. Every
// byte that a request finds is checked, wherever it has been.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "groups_disk_fixture.h"
#include "system_disk_fixture.h"
#include "testing/fake_device.h"
#include "testing/temp_directory.h"

namespace quire {
namespace {

using testing::FakeDevice;
using testing::FakeDeviceConfig;

struct AcceleratorCase {
  std::string name;
  DeviceMemory memory = DeviceMemory::Accelerator;
  SwapPath path = SwapPath::Staged;
  ByteLayout byte_layout = ByteLayout::PageFirst;

  friend void PrintTo(const AcceleratorCase& how, std::ostream* out) { *out << how.name; }
};

std::vector<AcceleratorCase> accelerator_cases() {
  return {{"OwnWhole", DeviceMemory::Accelerator, SwapPath::Whole},
          {"OwnStaged", DeviceMemory::Accelerator, SwapPath::Staged, ByteLayout::LayerFirst},
          {"OwnDirect", DeviceMemory::Accelerator, SwapPath::Direct},
          {"AdoptedWhole", DeviceMemory::Adopted, SwapPath::Whole, ByteLayout::LayerFirst},
          {"AdoptedStaged", DeviceMemory::Adopted, SwapPath::Staged}};
}

// Memory of the engine's, and a device that knows it.
class Accelerator {
 public:
  /// From here on `config` has its memory there.
  void add_to(CacheConfig& config, const AcceleratorCase& how) {
    if (device == nullptr) device = std::make_unique<FakeDevice>(FakeDeviceConfig{.seed = ++seed_});
    config.device.accelerator = device.get();
    config.device.memory = how.memory;
    config.device.byte_layout = how.byte_layout;
    config.host.staging_bytes = 4096;
    config.host.load_paths = SwapPaths{.few = how.path, .many = how.path};
    config.host.store_paths = config.host.load_paths;
    config.host.region.huge_pages = false;
    if (how.memory == DeviceMemory::Adopted) adopt(config);
  }
  void expect_no_leaks() {
    if (device != nullptr) {
      EXPECT_EQ(device->leak_count(), 0U);
    }
    device.reset();
    memories_.clear();
  }

  std::unique_ptr<FakeDevice> device;

 private:
  std::byte* allocate(std::uint64_t bytes) {
    std::vector<std::byte>& memory = memories_.emplace_back(bytes);
    device->adopt(memory);
    return memory.data();
  }
  // As many pages as a cache of these settings would have.
  void adopt(CacheConfig& config) {
    CacheConfig bare{.layout = config.layout,
                     .page = config.page,
                     .device = {.page_count = config.device.page_count,
                                .memory = DeviceMemory::None,
                                .byte_layout = config.device.byte_layout},
                     .sequence_count_max = config.sequence_count_max,
                     .context_tokens_max = config.context_tokens_max,
                     .step_tokens_max = config.step_tokens_max};
    const std::unique_ptr<Cache> cache = Cache::open(std::move(bare)).value();
    const std::span<const CacheGroup> groups = config.layout.groups();
    config.device.adopted_group_memory.clear();
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      config.device.adopted_group_memory.push_back(has_pages(groups[g]) ? allocate(cache->geometry(g).pool_bytes())
                                                                        : nullptr);
    }
    const std::uint64_t slot_bytes = cache->state_slots().slot_bytes();
    if (slot_bytes > 0) config.device.adopted_state_memory = allocate(slot_bytes * config.sequence_count_max);
  }

  std::uint64_t seed_ = 0;
  std::vector<std::vector<std::byte>> memories_;
};

class CacheAcceleratorTest : public SystemDiskTest, public ::testing::WithParamInterface<AcceleratorCase> {
 protected:
  ~CacheAcceleratorTest() override {
    close();
    accelerator_.expect_no_leaks();
  }
  [[nodiscard]] CacheConfig config(std::uint32_t page_count, bool has_disk,
                                   WritePolicy write_policy = WritePolicy::WriteThrough) {
    CacheConfig made = disk_config(page_count, 64);
    made.host.write_policy = write_policy;
    if (!has_disk) made.disk = {};
    accelerator_.add_to(made, GetParam());
    return made;
  }
  static std::vector<TokenId> prompt(TokenId number) { return token_range(1'000 * number, 65); }

  Accelerator accelerator_;
};

INSTANTIATE_TEST_SUITE_P(Cache, CacheAcceleratorTest, ::testing::ValuesIn(accelerator_cases()),
                         [](const auto& param) { return param.param.name; });

TEST_P(CacheAcceleratorTest, PagesThatTheDeviceHasNoRoomForComeBackFromTheHost) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough}) {
    close();
    accelerator_.expect_no_leaks();
    open(config(12, false, policy));
    for (std::uint32_t round = 0; round < 3; ++round) {
      for (TokenId i = 0; i < 8; ++i) EXPECT_EQ(serve(prompt(i)), round == 0 ? 0U : 64U) << "request " << i;
    }
    EXPECT_GT(stats().loaded_page_total, 30U);
    EXPECT_GT(stats().stored_page_total, 20U);
    EXPECT_EQ(stats().load_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)], 0U);
  }
}

TEST_P(CacheAcceleratorTest, AfterARestartPagesComeFromDisk) {
  for (const bool checksums : {true, false}) {
    const auto opened = [&](TokenId first, std::uint32_t found) {
      close();
      accelerator_.expect_no_leaks();
      CacheConfig made = config(24, true);
      made.host.checksums = checksums;
      open(std::move(made));
      for (TokenId i = first; i < first + 8; ++i) {
        EXPECT_EQ(serve(prompt(i)), found) << i;
        EXPECT_EQ(view_.disk_tokens, found) << i;
      }
      flush();
    };
    opened(checksums ? 0 : 100, 0);
    opened(checksums ? 0 : 100, 64);
  }
}

// A run that ends inside a page, whose copy the engine makes.
TEST_P(CacheAcceleratorTest, PartsOfPagesAreCopiedByTheEngine) {
  CacheConfig made = config(12, false);
  made.partial_reuse_min_tokens = 1;
  open(std::move(made));
  for (TokenId i = 0; i < 4; ++i) serve(prompt(i));
  std::vector<TokenId> other = prompt(0);
  other.resize(40);
  other.push_back(777'777);
  EXPECT_GE(serve(other), 32U);
  EXPECT_EQ(serve(prompt(0)), 64U);
}

TEST_P(CacheAcceleratorTest, WhatASequenceSavesComesBack) {
  CacheConfig made = config(8, false);
  made.host = host_for_saving(16);
  accelerator_.add_to(made, GetParam());
  open(std::move(made));
  std::vector<TokenId> tokens = prompt(1);
  Sequence sequence = begin_admitted(tokens);
  step(sequence, tokens, {5});
  ASSERT_TRUE(save(sequence).has_value());
  for (TokenId i = 2; i < 6; ++i) serve(prompt(i));
  const Result<Admission> admission = resume(sequence);
  ASSERT_TRUE(admission.has_value()) << admission.error().message;
  EXPECT_EQ(admission->matched_tokens, 65U);
  step(sequence, tokens, {6});
  EXPECT_TRUE(cache_->end(sequence));
}

TEST_P(CacheAcceleratorTest, SleepingKeepsWhatTheTierBelowHas) {
  open(config(24, true));
  const auto fall_asleep = [&](Sleep how) {
    while (true) {
      const Result<bool> is_asleep = cache_->sleep(how);
      ASSERT_TRUE(is_asleep.has_value()) << is_asleep.error().message;
      if (*is_asleep) break;
      drain(*cache_);
    }
    ASSERT_TRUE(cache_->wake());
  };
  for (TokenId i = 0; i < 4; ++i) serve(prompt(i));
  fall_asleep(Sleep::KeepHost);
  for (TokenId i = 0; i < 4; ++i) {
    EXPECT_EQ(serve(prompt(i)), 64U);
    EXPECT_EQ(view_.disk_tokens, 0U) << "from the host";
  }
  flush();
  fall_asleep(Sleep::DropAll);
  for (TokenId i = 0; i < 4; ++i) {
    EXPECT_EQ(serve(prompt(i)), 64U);
    EXPECT_EQ(view_.disk_tokens, 64U);
  }
}

TEST_P(CacheAcceleratorTest, ItsMemoryStaysWhereItIs) {
  open(config(24, false));
  const std::byte* const memory = cache_->device_memory();
  expect_error(cache_->resize(48), ErrorCode::Unsupported,
               GetParam().memory == DeviceMemory::Adopted ? "the pool's memory is the engine's"
                                                          : "memory on an accelerator stays where it is");
  EXPECT_EQ(cache_->device_memory(), memory);
  EXPECT_EQ(serve(prompt(0)), 0U);
}

TEST_P(CacheAcceleratorTest, AnEnginesOwnMoverNeedsNothingOfIt) {
  CacheConfig made = config(24, false);
  made.host.external_mover = true;
  open(std::move(made));
  EXPECT_EQ(accelerator_.device->leak_count(), GetParam().memory == DeviceMemory::Accelerator ? 1U : 0U)
      << "memory, and nothing else";
  EXPECT_EQ(run_request(prompt(0)), 0U);
}

// Requests are served, with right bytes, whichever call it is that fails.
TEST_P(CacheAcceleratorTest, ADeviceThatFailsOnceCostsTimeAlone) {
  bool has_failed = true;
  std::uint32_t open_count = 0;
  for (std::uint64_t call = 0; has_failed; call += call < 40 ? 1 : 3) {
    ASSERT_LT(call, 3000U);
    close();
    accelerator_.expect_no_leaks();
    CacheConfig made = config(12, false, WritePolicy::WriteBack);
    made.host.transfer_pages_max = 8;
    accelerator_.device->fail_call_after(call);
    Result<std::unique_ptr<Cache>> opened = Cache::open(std::move(made));
    if (!opened) {
      EXPECT_EQ(opened.error().code, ErrorCode::Io) << opened.error().message;
      continue;
    }
    ++open_count;
    cache_ = std::move(*opened);
    engine_ = std::make_unique<ByteEngine>(*cache_);
    space_ = cache_->key_space({.model = "test"}).value();
    for (TokenId i = 0; i < 8; ++i) serve(prompt(i % 4));
    has_failed = accelerator_.device->call_count() > call;
  }
  EXPECT_GT(open_count, 10U);
}

// Several groups.

class CacheAcceleratorGroupsTest : public CacheGroupsDiskTest,
                                   public ::testing::WithParamInterface<std::tuple<GroupMix, AcceleratorCase>> {
 protected:
  ~CacheAcceleratorGroupsTest() override {
    close();
    accelerator_.expect_no_leaks();
  }
  [[nodiscard]] CacheConfig config() {
    CacheConfig made = disk_config(std::get<0>(GetParam()).groups, 20);
    made.context_tokens_max = 256;
    made.host.page_count = 128;
    accelerator_.add_to(made, std::get<1>(GetParam()));
    return made;
  }

  Accelerator accelerator_;
};

INSTANTIATE_TEST_SUITE_P(Cache, CacheAcceleratorGroupsTest,
                         ::testing::Combine(::testing::ValuesIn(mixes()), ::testing::ValuesIn(accelerator_cases())),
                         [](const auto& param) {
                           return std::get<0>(param.param).name + std::get<1>(param.param).name;
                         });

TEST_P(CacheAcceleratorGroupsTest, EveryGroupComesBackFromTheHostAndFromDisk) {
  open(config());
  const auto prompt = [](TokenId number) { return token_range(1'000 * number, 200); };
  for (TokenId i = 0; i < 4; ++i) EXPECT_EQ(serve(prompt(i)), 0U);
  for (TokenId i = 0; i < 4; ++i) EXPECT_GE(serve(with_tail(prompt(i), 1, 20)), 128U) << "from the host";
  EXPECT_GT(cache_->stats()->loaded_page_total, 0U);
  flush();
  close();
  accelerator_.expect_no_leaks();
  open(config());
  for (TokenId i = 0; i < 4; ++i) {
    EXPECT_GE(serve(with_tail(prompt(i), 2, 20)), 128U) << "from disk";
    EXPECT_GT(view_.disk_tokens, 0U);
  }
}

// What is refused.

TEST(CacheAcceleratorInput, SettingsThatContradictEachOtherAreErrors) {
  FakeDevice device(FakeDeviceConfig{.memory_bytes_max = 1 << 20U});
  const auto open = [&](const DeviceConfig& of_device, const HostConfig& host = {}) {
    CacheConfig config = test_config(16, of_device.page_count);
    config.device = of_device;
    config.host = host;
    return Cache::open(std::move(config));
  };
  DeviceConfig on_device{.page_count = 8, .memory = DeviceMemory::Accelerator};
  expect_error(open(on_device), ErrorCode::InvalidArgument,
               "device.memory is Accelerator, but device.accelerator is null: open_cuda_device() makes one");
  on_device.accelerator = &device;
  on_device.memory = DeviceMemory::Host;
  expect_error(open(on_device), ErrorCode::InvalidArgument,
               "device.accelerator is set, but device.memory is Host: use Accelerator, or Adopted");
  on_device.memory = DeviceMemory::Adopted;
  expect_error(open(on_device), ErrorCode::InvalidArgument, "device.adopted_memory is null");
  on_device.memory = DeviceMemory::None;
  expect_error(open(on_device, {.page_count = 8}), ErrorCode::InvalidArgument,
               "DeviceMemory::Host, Adopted or Accelerator");
  EXPECT_TRUE(open(on_device).has_value()) << "nothing is asked of it";

  on_device.memory = DeviceMemory::Accelerator;
  std::byte memory{};
  on_device.adopted_memory = &memory;
  expect_error(open(on_device), ErrorCode::InvalidArgument, "adopted_memory is set, but device.memory is not");
  on_device.adopted_memory = nullptr;
  on_device.page_count = 1 << 16U;
  expect_error(open(on_device), ErrorCode::Unavailable, "on fake device 0");
  EXPECT_EQ(device.leak_count(), 0U);
  on_device.page_count = 64;
  expect_error(open(on_device, {.page_count = 64}), ErrorCode::Unavailable, "on fake device 0");
  EXPECT_EQ(device.leak_count(), 0U) << "there is no room for staging";
  EXPECT_TRUE(open(on_device, {.page_count = 64, .staging_bytes = 4096}).has_value());
  EXPECT_EQ(device.leak_count(), 0U);
}

// K and V of each layer in tensors of their own, with gaps between pages.
TEST(CacheAcceleratorTensors, PagesComeBackToTensorsThatLieApart) {
  constexpr std::uint32_t kPages = 8;
  constexpr std::uint32_t kTokens = 16;
  const ModelLayout layout = ModelLayout::simple({.layers = 3, .kv_heads = 2, .head_dim = 4}).value();
  const PageGeometry page = PageGeometry::create(layout.groups()[0], {.page_tokens = kTokens}).value();
  const std::uint64_t fragment_bytes = page.layer_bytes() / 2;
  const std::uint64_t stride = fragment_bytes + 48;
  FakeDevice device({.seed = 5});
  std::vector<std::vector<std::byte>> memories(6, std::vector<std::byte>((kPages + 1) * stride));
  std::vector<AdoptedTensor> tensors;
  for (std::uint32_t i = 0; i < memories.size(); ++i) {
    device.adopt(memories[i]);
    tensors.push_back(
        {.layer_index = i / 2, .component_index = i % 2, .data = memories[i].data(), .page_stride = stride});
  }
  CacheConfig config{.layout = layout,
                     .page = {.page_tokens = kTokens},
                     .device = {.page_count = kPages,
                                .memory = DeviceMemory::Adopted,
                                .adopted_tensors = {tensors},
                                .accelerator = &device},
                     .host = {.page_count = 32, .write_policy = WritePolicy::WriteThrough, .staging_bytes = 1}};
  {
    const std::unique_ptr<Cache> cache = Cache::open(std::move(config)).value();
    EXPECT_EQ(cache->device_memory(), nullptr);
    const KeySpaceId space = cache->key_space({.model = "apart"}).value();
    const auto pump = [&] { ASSERT_TRUE(cache->apply(cache->poll().value(), 0)); };
    // What a page of a prompt has in a tensor.
    const auto byte_of = [](TokenId first, std::uint32_t tensor) {
      return static_cast<std::byte>((first * 7) + static_cast<TokenId>(tensor));
    };
    for (std::uint32_t turn = 0; turn < 12; ++turn) {
      const auto first = static_cast<TokenId>(1'000 * (turn % 4));
      std::vector<TokenId> prompt;
      for (TokenId t = 0; t < 49; ++t) prompt.push_back(first + t);
      Sequence sequence = cache->begin(space, {prompt}).value();
      Result<Admission> hit = cache->admit(sequence);
      while (!hit && hit.error().code == ErrorCode::Unavailable) {
        pump();
        hit = cache->admit(sequence);
      }
      ASSERT_TRUE(hit) << hit.error().message;
      while (cache->view(sequence)->is_loading) pump();
      const std::uint32_t found = cache->view(sequence)->computed_tokens;
      const StepEntry entry{&sequence};
      PlanOutcome outcome = cache->plan_step({&entry, 1}).value();
      while (!outcome.step) {
        pump();
        outcome = cache->plan_step({&entry, 1}).value();
      }
      const std::span<const PageId> pages = outcome.step->plan.entries.front().pages;
      for (std::uint32_t p = 0; p < 3; ++p) {
        for (std::uint32_t i = 0; i < memories.size(); ++i) {
          const std::span<std::byte> bytes(memories[i].data() + (pages[p].value * stride), fragment_bytes);
          const std::byte wanted = byte_of(first + static_cast<TokenId>(p), i);
          if ((p + 1) * kTokens <= found) {
            EXPECT_TRUE(std::ranges::all_of(bytes, [&](std::byte byte) { return byte == wanted; })) << "turn " << turn;
          } else {
            std::ranges::fill(bytes, wanted);
          }
        }
      }
      const StepResult result;
      ASSERT_TRUE(cache->finish_step(*outcome.step, {&result, 1}));
      ASSERT_TRUE(cache->end(sequence));
      EXPECT_EQ(found, turn < 4 ? 0U : 48U) << "turn " << turn;
      drain(*cache);  // a page that makes room before it is written is lost, as with any cache
    }
    EXPECT_GT(cache->stats()->loaded_page_total, 10U);
    EXPECT_TRUE(std::ranges::all_of(memories[0].begin(), memories[0].begin() + static_cast<std::ptrdiff_t>(stride),
                                    [](std::byte byte) { return byte == std::byte{0}; }));
  }
  EXPECT_EQ(device.leak_count(), 0U);
}

TEST(CacheAcceleratorTensors, ListsThatDoNotFitTheLayoutAreErrors) {
  FakeDevice device;
  std::vector<std::byte> memory(1 << 16);
  const AdoptedTensor tensor{.layer_index = 0, .data = memory.data(), .page_stride = 4096};
  const auto message_of = [&](const DeviceConfig& wrong) {
    CacheConfig config{.layout = ModelLayout::simple({.layers = 1, .kv_heads = 1, .head_dim = 4}).value(),
                       .device = wrong,
                       .host = {.page_count = 8}};
    const auto cache = Cache::open(std::move(config));
    return cache ? std::string() : cache.error().message;
  };
  const DeviceConfig good{
      .page_count = 4, .memory = DeviceMemory::Adopted, .adopted_tensors = {{tensor}}, .accelerator = &device};
  device.adopt(memory);
  EXPECT_EQ(message_of(good), "");
  DeviceConfig wrong = good;
  wrong.accelerator = nullptr;
  EXPECT_NE(message_of(wrong).find("device.adopted_tensors needs device.memory Adopted"), std::string::npos);
  wrong = good;
  wrong.adopted_memory = memory.data();
  EXPECT_NE(message_of(wrong).find("give either"), std::string::npos);
  wrong = good;
  wrong.adopted_tensors.emplace_back();
  EXPECT_NE(message_of(wrong).find("device.adopted_tensors has 2 lists"), std::string::npos);
  wrong.adopted_tensors = {{}};
  EXPECT_NE(message_of(wrong).find("device.adopted_tensors[0] is empty"), std::string::npos);
  wrong.adopted_tensors = {{tensor, tensor}};
  EXPECT_NE(message_of(wrong).find("adopting tensors of group"), std::string::npos);
}

TEST(CacheAcceleratorInput, CopiesAreTheEngines) {
  FakeDevice device;
  CacheConfig config = test_config(16, 8);
  config.device.memory = DeviceMemory::Accelerator;
  config.device.accelerator = &device;
  const std::unique_ptr<Cache> cache = open_cache(std::move(config));
  for (const std::byte* byte = cache->device_memory(); byte < cache->device_memory() + cache->geometry().pool_bytes();
       ++byte) {
    ASSERT_EQ(*byte, std::byte{0});
  }
  expect_error(cache->apply_copies({}), ErrorCode::Unsupported, "apply the plan's moves and copies where it is");
  expect_error(cache->apply_saves({}), ErrorCode::Unsupported, "apply the plan's state_saves where it is");
}

}  // namespace
}  // namespace quire
