// SPDX-License-Identifier: Apache-2.0
//
// Cache: handing transfers to an external mover, and taking the reports of movers and lower tiers.
#include <unistd.h>

#include <algorithm>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<std::span<TransferPlan>> Cache::take_transfers(std::span<TransferPlan> out) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.config.host.external_mover) {
    return unsupported("take_transfers: the cache moves pages itself; see host.external_mover");
  }
  impl.tiers->work_in_background();
  TransferBook& book = impl.tiers->parts.book;
  std::size_t count = 0;
  for (const TransferPriority priority : {TransferPriority::Waiting, TransferPriority::Background}) {
    for (std::size_t i = 0; i < book.queue().size() && count < out.size();) {
      const std::uint32_t index = book.queue()[i];
      if (book[index].priority != priority || is_of_lower_tier(book[index].kind)) {
        ++i;
        continue;
      }
      out[count++] = impl.tiers->parts.plan_of(index);
      book.take(index);
    }
  }
  impl.tiers->arrivals.run_ahead();
  return out.first(count);
}

Result<std::span<TransferId>> Cache::take_cancellations(std::span<TransferId> out) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.config.host.external_mover) {
    return unsupported("take_cancellations: the cache moves pages itself; see host.external_mover");
  }
  return impl.tiers->parts.book.take_called_off(out);
}

Result<std::span<const Completion>> Cache::poll() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.may_apply_alone("poll"));
  if (!impl.has_host()) return std::span<const Completion>{};  // so that an engine's loop is the same for any tiers
  if (impl.tiers->parts.mover == nullptr && !impl.has_lower()) {
    return unsupported("poll: the engine moves pages itself; see take_transfers()");
  }
  impl.rank_reports.is_late = true;
  return impl.collect();
}

// Starts what is to be moved, and gives what the cache's own mover and the lower tiers have ended.
std::span<const Completion> Cache::Impl::collect() {
  TierParts& parts = tiers->parts;
  tiers->work_in_background();
  // Mover and lower tiers signal the same event. It is read before they are polled, so that no completion is missed.
  // Together they never have more completions than the buffer has room for.
  std::uint64_t events = 0;
  if (has_lower() && event_fd() >= 0) (void)!::read(event_fd(), &events, sizeof(events));
  std::size_t count = parts.mover != nullptr ? parts.mover->poll(completions).size() : 0;
  for (const Lower& lower : parts.lowers) {
    const std::span<Completion> polled = lower.tier->poll(std::span(completions).subspan(count));
    for (Completion& completion : polled) completion.tier = lower.settings.tier;
    count += polled.size();
  }
  return std::span<const Completion>(completions).first(count);
}

int Cache::event_fd() const {
  return impl_->event_fd();
}

Result<HostRegionStatus> Cache::host_region() const {
  QUIRE_TRY(impl_->enter());
  if (impl_->tiers->parts.mover == nullptr) {
    return unsupported(impl_->has_host() ? "host_region: the engine moves pages itself"
                                         : "host_region: the cache has no host tier");
  }
  return impl_->host_region;
}

Status Cache::set_ready_callback(ReadyCallback callback) {
  QUIRE_TRY(impl_->enter());
  impl_->on_ready = callback ? std::make_shared<ReadyCallback>(std::move(callback)) : nullptr;
  return {};
}

Status Cache::apply(std::span<const Completion> completions, TimeNs now) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.may_apply_alone("apply"));
  impl.rank_reports.is_late = true;
  QUIRE_TRY(Impl::check_completions(completions, "apply"));
  QUIRE_TRY(impl.advance(now));
  for (const Completion& completion : completions) {
    if (!impl.tiers->apply(completion)) ++impl.counters.unknown_completion_count;
  }
  if (impl.has_host()) impl.follow_up();
  return {};
}

// Completions may come from another process, so their values are checked.
Status Cache::Impl::check_completions(std::span<const Completion> completions, const char* call) {
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const auto outcome = static_cast<std::size_t>(completions[i].outcome);
    const auto fault = static_cast<std::size_t>(completions[i].fault);
    if (outcome < kTransferOutcomeCount && fault < kTransferFaultCount) continue;
    return invalid(call, ": completion ", plain(i), " has outcome ", plain(outcome), " and fault ", plain(fault),
                   "; there is no such outcome or fault");
  }
  return {};
}

void Cache::Impl::follow_up() {
  update_holds();  // before others take host pages
  tiers->follow_up();
  release_lost_holds();  // the tiers have just dropped pages that turned out to be bad
  std::vector<SequenceId>& ready_sequences = tiers->parts.ready_sequences;
  while (!ready_sequences.empty()) {
    const SequenceId ready = ready_sequences.front();
    ready_sequences.erase(ready_sequences.begin());  // a callback may call apply() again
    const auto callback = on_ready;                  // or replace on_ready
    if (!sequences.find(ready)) continue;            // take_transfers() made it ready, and it has ended since
    if (callback) (*callback)(ready);
    call_ready(ready);
  }
  call_holders();
  while (!tiers->answers.empty()) {
    const Tiers::Answer answer = std::move(tiers->answers.front());
    tiers->answers.erase(tiers->answers.begin());
    if (answer.callback) answer.callback(answer.outcome, answer.hit);
  }
}

}  // namespace quire
