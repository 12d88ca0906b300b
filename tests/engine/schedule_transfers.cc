// SPDX-License-Identifier: Apache-2.0
//
// What random schedules send and receive. Both sides are the same cache: a sequence that has the tokens sends what it
// computes to the slots of one that waits for them, through the engine's own pool as a receiver. Whatever becomes of
// the sender, the slots are the target's until it has finished or given up, and nobody else may write them.
#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule_model.h"

namespace quire::testing {

std::string ScheduleModel::receive(Random& random) {
  Live* target = draw_resting(random);
  if (target == nullptr) return "";
  if (draw_chance(random, 60)) {  // for one that is begun to get them
    const Live& source = *target;
    if (std::string problem = begin_copy(source, random, target); !problem.empty()) return problem;
  }
  if (target == nullptr) return "";
  std::string problem = receive_for(*target, random);
  const Transfer* transfer = find_receiving(*target);
  if (!problem.empty() || transfer == nullptr || transfer->source == 0 || !draw_chance(random, 50)) return problem;
  // The sender has one more to send to, or gets its own tokens from another one and sends them on.
  Live& source = *find(transfer->source);
  Live* copy = nullptr;
  problem = begin_copy(source, random, copy);
  if (!problem.empty() || copy == nullptr) return problem;
  return receive_for(draw_chance(random, 50) ? source : *copy, random);
}

std::string ScheduleModel::receive_for(Live& target, Random& random) {
  if (target.texts.size() >= target.tokens.size()) return "";
  const auto begin = static_cast<std::uint32_t>(target.texts.size());
  auto end_max = static_cast<std::uint32_t>(target.tokens.size());
  if (target.window.visible_tokens > 0) end_max = std::min(end_max, target.window.visible_tokens);
  if (end_max <= begin) return "";
  const std::uint32_t count = draw_chance(random, 50) ? end_max - begin : 1 + random.below(end_max - begin);
  if (senders_to(target, begin + count).empty() && draw_chance(random, 90)) return "";
  const SequenceView before = cache_->view(target.handle).value();
  const std::vector<PageId> pages(before.pages().begin(), before.pages().end());
  const Result<std::span<const SlotRun>> slots = cache_->prepare_receive(target.handle, count);
  if (!slots) {
    // Pages are short, its first page waits for a copy, or what is in flight may write where it would receive.
    if (slots.error().code != ErrorCode::Unavailable) return "prepare_receive: " + slots.error().message;
    counts_.add("receive refused");
    return check_unchanged(target, before, pages);
  }
  Transfer transfer{.target = target.number, .begin = begin, .end = begin + count};
  transfer.slots.assign(slots->begin(), slots->end());
  const auto slot_count = std::accumulate(slots->begin(), slots->end(), std::int64_t{0},
                                          [](std::int64_t sum, const SlotRun& run) { return sum + run.token_count; });
  if (slot_count != count) return "prepare_receive gave another number of slots";
  target.is_receiving = true;
  transfers_.push_back(std::move(transfer));
  counts_.add("receive");
  if (begin % setup_.page_tokens != 0) counts_.add("receive inside a page");
  return draw_chance(random, 85) ? mark(transfers_.back(), random) : "";
}

// Another sequence with tokens of `source`, admitted; none while there is no room for it.
std::string ScheduleModel::begin_copy(const Live& source, Random& random, Live*& copy) {
  copy = nullptr;
  if (source.tokens.empty() || lives_.size() + 1 > setup_.sequence_count_max) return "";
  const auto known = static_cast<std::uint32_t>(source.tokens.size());
  const std::uint32_t count = draw_chance(random, 50) ? known : 1 + random.below(known);
  SequenceOptions options;
  options.use_cache = draw_chance(random, 40);
  // Pages that nobody else may find are its own to the end: what arrives in them is what is read.
  if (draw_chance(random, 50)) options.publish = Publish::None;
  const std::size_t live_count = lives_.size();
  std::string problem =
      begin_with({source.tokens.begin(), source.tokens.begin() + static_cast<std::ptrdiff_t>(count)}, options);
  if (!problem.empty() || lives_.size() == live_count) return problem;
  copy = lives_.back().get();
  return admit_one(*copy);
}

std::string ScheduleModel::mark_send(Random& random) {
  std::vector<Transfer*> open;
  for (Transfer& transfer : transfers_) {
    if (transfer.source == 0 && !transfer.is_sent) open.push_back(&transfer);
  }
  return open.empty() ? "" : mark(*open[random.below(static_cast<std::uint32_t>(open.size()))], random);
}

std::vector<ScheduleModel::Live*> ScheduleModel::senders_to(const Live& target, std::uint32_t end) const {
  std::vector<Live*> senders;
  for (const auto& live : lives_) {
    if (live.get() == &target || !is_resting(*live) || live->window.visible_tokens > 0 || live->tokens.size() < end)
      continue;
    if (std::equal(target.tokens.begin(), target.tokens.begin() + end, live->tokens.begin())) {
      senders.push_back(live.get());
    }
  }
  return senders;
}

// Now and then one that sends to somebody else, who is left without.
ScheduleModel::Live& ScheduleModel::draw_sender(std::span<Live* const> senders, Random& random) {
  Live* sender = senders[random.below(static_cast<std::uint32_t>(senders.size()))];
  if (!draw_chance(random, 40)) return *sender;
  for (Live* live : senders) {
    if (find_sending(*live) != nullptr) sender = live;
  }
  return *sender;
}

// Somebody who has all tokens up to the transfer's end sends them.
std::string ScheduleModel::mark(Transfer& transfer, Random& random) {
  const std::vector<Live*> sources = senders_to(*find(transfer.target), transfer.end);
  if (sources.empty()) return "";
  Live& source = draw_sender(sources, random);
  const Status status = cache_->mark_send(source.handle, transfer.begin, transfer.slots, kOwnPool);
  if (!status) return "mark_send: " + status.error().message;
  if (Transfer* earlier = find_sending(source)) {
    earlier->source = 0;
    counts_.add("mark replaced");
  }
  transfer.source = source.number;
  counts_.add("mark");
  if (source.texts.size() > transfer.begin) counts_.add("mark of computed tokens");
  return "";
}

// What was sent counts when the receiver says so; everything else about it may be given up at any time.
std::string ScheduleModel::arrive(Random& random) {
  if (transfers_.empty()) return "";
  const std::size_t index = random.below(static_cast<std::uint32_t>(transfers_.size()));
  Transfer& transfer = transfers_[index];
  Live& target = *find(transfer.target);
  const bool is_given_up = draw_chance(random, 15);
  if (!transfer.is_sent || is_given_up) {
    if (!is_given_up || !can_stop_sending(transfer)) return "";
    if (std::string problem = stop_sending(transfer); !problem.empty()) return problem;
    const Status status = cache_->abort_receive(target.handle);
    if (!status) return "abort_receive: " + status.error().message;
    counts_.add("abort_receive");
    target.is_receiving = false;
    transfers_.erase(transfers_.begin() + static_cast<std::ptrdiff_t>(index));
    return "";
  }
  const SequenceView view = cache_->view(target.handle).value();
  const std::vector<PageId> pages(view.pages().begin(), view.pages().end());
  const Status status = cache_->finish_receive(target.handle);
  if (!status) return "finish_receive: " + status.error().message;
  counts_.add("finish_receive");
  if (find_sending(target) != nullptr) counts_.add("finish_receive of a sender");
  const std::span<const PageId> after = cache_->view(target.handle)->pages();
  for (std::size_t i = transfer.begin / setup_.page_tokens; i < std::min(after.size(), pages.size()); ++i) {
    if (after[i] == pages[i]) counts_.add("received page kept");
  }
  std::int32_t previous = target.texts.empty() ? OracleTexts::kBegin : target.texts.back();
  for (std::uint32_t i = transfer.begin; i < transfer.end; ++i) {
    previous = texts_.intern(previous, target.tokens[i], 0, 0);
    target.texts.push_back(previous);
  }
  target.is_receiving = false;
  transfers_.erase(transfers_.begin() + static_cast<std::ptrdiff_t>(index));
  return "";
}

bool ScheduleModel::can_stop_sending(const Transfer& transfer) {
  if (transfer.source == 0) return true;
  const Live& source = *find(transfer.source);
  return source.is_admitted && !source.is_receiving && !is_in_flight(source);
}

// Takes the mark back and waits for whatever is in flight: nobody writes the target's slots afterwards.
std::string ScheduleModel::stop_sending(Transfer& transfer) {
  if (transfer.source != 0) {
    const Status status = cache_->mark_send(find(transfer.source)->handle, 0, {}, kOwnPool);
    if (!status) return "mark_send of nothing: " + status.error().message;
    transfer.source = 0;
    counts_.add("mark taken back");
  }
  return flights_.empty() ? "" : run_up_to(flights_.size() - 1);
}

// A sender that was cut gets its tokens back, or sends no more: others in their place would be another text.
std::string ScheduleModel::mend_sender(Live& live, std::span<const TokenId> cut, Random& random) {
  Transfer* transfer = find_sending(live);
  if (transfer == nullptr || live.tokens.size() >= transfer->end) return "";
  counts_.add("rewind of a sender");
  if (draw_chance(random, 40)) {
    const Status status = cache_->mark_send(live.handle, 0, {}, kOwnPool);
    if (!status) return "mark_send of nothing: " + status.error().message;
    transfer->source = 0;
    counts_.add("mark taken back");
    return "";
  }
  const Status status = cache_->append(live.handle, {.tokens = cut});
  if (!status) return "append after rewind: " + status.error().message;
  live.tokens.insert(live.tokens.end(), cut.begin(), cut.end());
  return "";
}

ScheduleModel::Transfer* ScheduleModel::find_sending(const Live& live) {
  for (Transfer& transfer : transfers_) {
    if (transfer.source == live.number) return &transfer;
  }
  return nullptr;
}

ScheduleModel::Transfer* ScheduleModel::find_receiving(const Live& live) {
  for (Transfer& transfer : transfers_) {
    if (transfer.target == live.number) return &transfer;
  }
  return nullptr;
}

}  // namespace quire::testing
