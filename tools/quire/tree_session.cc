// SPDX-License-Identifier: Apache-2.0
#include "tree_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "terminal.h"

namespace quire {

namespace {

constexpr std::uint32_t kStepTokensMax = 4'096;

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

std::string text_of_fields(const KeySpace& space) {
  const std::array<std::pair<std::string_view, const std::string&>, 6> fields = {{{"model", space.model},
                                                                                  {"revision", space.revision},
                                                                                  {"adapter", space.adapter},
                                                                                  {"element", space.element},
                                                                                  {"rope", space.rope},
                                                                                  {"salt", space.salt}}};
  std::string text;
  for (const auto& [name, value] : fields) {
    if (!value.empty()) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  }
  return text;
}

// Whether `path`, up to `end`, begins `tokens`.
bool begins_with(std::span<const TokenId> tokens, std::span<const TokenId> path, std::size_t end) {
  return end <= tokens.size() && end <= path.size() && std::ranges::equal(tokens.first(end), path.first(end));
}

std::string text_of_match(std::uint32_t matched, std::uint32_t partial, std::size_t asked, std::string_view verb) {
  std::string text = fmt::format("{} {} of {}", verb, matched, counted(asked, "token"));
  if (partial > 0) text += fmt::format(" ({} copied)", partial);
  return text;
}

}  // namespace

Result<TreeSession> TreeSession::open(const TreeOptions& options) {
  QUIRE_TRY_ASSIGN(ModelLayout layout, ModelLayout::opaque(1));
  CacheConfig config{.layout = std::move(layout)};
  config.page.page_tokens = options.page_tokens;
  config.device.page_count = options.page_count;
  config.device.memory = DeviceMemory::None;
  config.sequence_count_max = 64;
  config.step_tokens_max = kStepTokensMax;
  config.policy = options.policy;
  config.whole_runs = options.whole_runs;
  QUIRE_TRY_ASSIGN(std::unique_ptr<Cache> cache, Cache::open(std::move(config)));
  return TreeSession(std::move(cache), options);
}

Result<std::string> TreeSession::execute(const TreeOperation& operation) {
  switch (operation.verb) {
    case TreeVerb::Let:
      return fmt::format("{}", counted(operation.tokens.size(), "token"));
    case TreeVerb::Space:
      return use_space(operation);
    case TreeVerb::Run:
      return run(operation);
    case TreeVerb::Begin:
      return begin(operation);
    case TreeVerb::Admit:
      return admit(operation);
    case TreeVerb::Step:
      return step(operation);
    case TreeVerb::Decode:
      return decode(operation);
    case TreeVerb::End:
      return end(operation);
    case TreeVerb::Lookup:
      return lookup(operation);
    case TreeVerb::Keep:
      return keep(operation);
    case TreeVerb::Unkeep:
      return unkeep(operation);
    case TreeVerb::Advance:
      return advance(operation);
    case TreeVerb::Drop:
      return drop(operation);
    case TreeVerb::Reset: {
      QUIRE_TRY_ASSIGN(const Stats before, cache_->stats());
      QUIRE_TRY(cache_->reset());
      keeps_.clear();
      return fmt::format("gave up {}", counted(before.sealed_pages, "page"));
    }
    case TreeVerb::Show:
    case TreeVerb::Nothing:
      return std::string();
  }
  return std::string();
}

// Key spaces

Result<KeySpaceId> TreeSession::current_space() {
  Space& space = spaces_[space_name_];
  QUIRE_TRY_ASSIGN(space.id, cache_->key_space(space.fields));
  space.is_known = true;
  return space.id;
}

Result<std::string> TreeSession::use_space(const TreeOperation& operation) {
  const bool is_new = !spaces_.contains(operation.name);
  Space& space = spaces_[operation.name];
  const KeySpace fields = operation.key_space.value_or(KeySpace{.salt = operation.name});
  if (!is_new && operation.key_space && fields != space.fields) {
    return refuse(fmt::format("key space {} has other fields ({})", operation.name, text_of_fields(space.fields)));
  }
  if (is_new) space.fields = fields;
  space_name_ = operation.name;
  for (const auto& [name, other] : spaces_) {
    if (name != operation.name && other.fields == space.fields) {
      return fmt::format("the same key space as {}: its fields are equal", name);
    }
  }
  const std::string text = text_of_fields(space.fields);
  return text.empty() ? "a key space without fields" : text;
}

Result<std::string> TreeSession::drop(const TreeOperation& operation) {
  const std::string& name = operation.name.empty() ? space_name_ : operation.name;
  const auto found = spaces_.find(name);
  if (found == spaces_.end() || !found->second.is_known) {
    return refuse(fmt::format("nothing has used a key space named {} yet", name));
  }
  Space& space = found->second;
  QUIRE_TRY_ASSIGN(const std::uint32_t freed, cache_->drop(space.id));
  for (auto& [other_name, other] : spaces_) {
    if (other.id == space.id && &other != &space) other.is_known = false;
  }
  space.is_known = false;
  std::erase_if(keeps_, [&](const auto& each) { return each.second.key_space == space.id; });
  return fmt::format("freed {}", counted(freed, "page"));
}

// Requests

Result<TreeSession::Request*> TreeSession::find_request(const std::string& name) {
  const auto found = requests_.find(name);
  if (found == requests_.end()) return refuse(fmt::format("no live request is named {}", name));
  return &found->second;
}

Result<std::string> TreeSession::begin(const TreeOperation& operation) {
  if (requests_.contains(operation.name)) {
    return refuse(fmt::format("{0} is live already; end {0} first, or take another name", operation.name));
  }
  QUIRE_TRY_ASSIGN(const KeySpaceId space, current_space());
  QUIRE_TRY_ASSIGN(const Lookup found, cache_->lookup(space, {operation.tokens}));
  QUIRE_TRY_ASSIGN(Sequence sequence, cache_->begin(space, {operation.tokens}, operation.sequence));
  const std::size_t match_tokens_max =
      operation.sequence.use_cache ? operation.sequence.match_tokens_max.value_or(UINT32_MAX) : 0;
  requests_[operation.name] = {.sequence = std::move(sequence),
                               .key_space = space,
                               .prompt = operation.tokens,
                               .matchable_tokens = std::min(operation.tokens.size(), match_tokens_max)};
  return fmt::format("waits; {} of {} are cached", found.matched_tokens, counted(operation.tokens.size(), "token"));
}

Result<std::string> TreeSession::admit(const TreeOperation& operation) {
  QUIRE_TRY_ASSIGN(const Request* const request, find_request(operation.name));
  QUIRE_TRY_ASSIGN(const Admission admission, cache_->admit(request->sequence));
  return text_of_match(admission.matched_tokens, admission.partial_tokens, request->prompt.size(), "matched");
}

Result<std::string> TreeSession::run(const TreeOperation& operation) {
  QUIRE_TRY_ASSIGN(const Stats before, cache_->stats());
  QUIRE_TRY(begin(operation));
  // From here on the request is there, and must not stay when something fails.
  const auto serve = [&]() -> Result<std::string> {
    QUIRE_TRY_ASSIGN(const std::string matched, admit(operation));
    const Request& request = requests_[operation.name];
    QUIRE_TRY_ASSIGN(Computed computed, operation.answer.empty() ? compute(request, UINT32_MAX, {})
                                                                 : compute_answer(request, operation.answer));
    QUIRE_TRY_ASSIGN(const Stats after, cache_->stats());
    return matched + "; " + text_of(computed, before, after);
  };
  Result<std::string> text = serve();
  QUIRE_TRY(end(operation));
  return text;
}

Result<std::string> TreeSession::step(const TreeOperation& operation) {
  QUIRE_TRY_ASSIGN(const Request* const request, find_request(operation.name));
  QUIRE_TRY_ASSIGN(const Stats before, cache_->stats());
  QUIRE_TRY_ASSIGN(const Computed computed, compute(*request, operation.count.value_or(UINT32_MAX), operation.answer));
  QUIRE_TRY_ASSIGN(const Stats after, cache_->stats());
  return text_of(computed, before, after);
}

Result<std::string> TreeSession::decode(const TreeOperation& operation) {
  QUIRE_TRY_ASSIGN(const Request* const request, find_request(operation.name));
  QUIRE_TRY_ASSIGN(const Stats before, cache_->stats());
  QUIRE_TRY_ASSIGN(const Computed computed, compute_answer(*request, operation.tokens));
  QUIRE_TRY_ASSIGN(const Stats after, cache_->stats());
  return text_of(computed, before, after);
}

// Computes up to `token_count` of the pending tokens, and gives the sequence `answer` after the last of them.
Result<TreeSession::Computed> TreeSession::compute(const Request& request, std::uint32_t token_count,
                                                   std::span<const TokenId> answer) {
  Computed computed;
  QUIRE_TRY_ASSIGN(SequenceView view, cache_->view(request.sequence));
  if (view.pending_tokens == 0) {
    return refuse(
        "nothing is pending: all its tokens are computed, and new ones come from the step that computes the "
        "last (step NAME => TOKENS)");
  }
  if (token_count != UINT32_MAX && token_count > view.pending_tokens) {
    return refuse(fmt::format("it has {} pending", counted(view.pending_tokens, "token")));
  }
  std::uint32_t left = std::min(token_count, view.pending_tokens);
  while (left > 0) {
    QUIRE_TRY_ASSIGN(view, cache_->view(request.sequence));
    computed.ran_last_again |= view.computed_tokens == view.token_count;
    const StepEntry entry{&request.sequence, std::min(left, kStepTokensMax)};
    QUIRE_TRY_ASSIGN(const PlanOutcome outcome, cache_->plan_step({&entry, 1}));
    if (!outcome.step) {
      computed.shortage = outcome.shortage;
      break;
    }
    left -= entry.token_count;
    const StepResult result{left == 0 ? answer : std::span<const TokenId>()};
    if (Status status = cache_->finish_step(*outcome.step, {&result, 1}); !status) {
      QUIRE_TRY(cache_->abort_step(*outcome.step));
      return tl::unexpected(std::move(status).error());
    }
  }
  return computed;
}

// One token of the answer comes from each step. The last one is known then, but not computed.
Result<TreeSession::Computed> TreeSession::compute_answer(const Request& request, std::span<const TokenId> answer) {
  Computed all;
  for (std::size_t i = 0; i < answer.size() && all.shortage.pages_needed == 0; ++i) {
    QUIRE_TRY_ASSIGN(const Computed one, compute(request, UINT32_MAX, answer.subspan(i, 1)));
    all.ran_last_again |= one.ran_last_again;
    all.shortage = one.shortage;
  }
  return all;
}

std::string TreeSession::text_of(const Computed& computed, const Stats& before, const Stats& after) const {
  std::string text = fmt::format("computed {}", counted(after.computed_tokens - before.computed_tokens, "token"));
  if (computed.ran_last_again) text += " (the last one again, writing nothing)";
  const auto add = [&](std::uint64_t count, std::string_view what) {
    if (count > 0) text += fmt::format(", {} {}", what, counted(count, "page"));
  };
  add(after.evicted_page_total - before.evicted_page_total, "evicted");
  add(after.sealed_page_total - before.sealed_page_total, "cached");
  if (const std::uint64_t count = after.duplicate_page_total - before.duplicate_page_total; count > 0) {
    text += fmt::format(", gave back {}", counted(count, "duplicate page"));
  }
  if (computed.shortage.pages_needed > 0) {
    text += fmt::format("; short of pages: {} needed, {} free or evictable", computed.shortage.pages_needed,
                        computed.shortage.pages_available);
  }
  return text;
}

Result<std::string> TreeSession::end(const TreeOperation& operation) {
  QUIRE_TRY_ASSIGN(Request* const request, find_request(operation.name));
  QUIRE_TRY_ASSIGN(const Stats before, cache_->stats());
  QUIRE_TRY(cache_->end(request->sequence));
  requests_.erase(operation.name);
  QUIRE_TRY_ASSIGN(const Stats after, cache_->stats());
  return fmt::format("unpinned {}, freed {}", counted(before.pinned_pages - after.pinned_pages, "page"),
                     counted(after.free_pages - before.free_pages, "page"));
}

Result<std::string> TreeSession::lookup(const TreeOperation& operation) {
  QUIRE_TRY_ASSIGN(const KeySpaceId space, current_space());
  QUIRE_TRY_ASSIGN(const Lookup found, cache_->lookup(space, {operation.tokens}));
  return text_of_match(found.matched_tokens, found.partial_tokens, operation.tokens.size(), "would match");
}

// Kept prefixes

Result<std::string> TreeSession::keep(const TreeOperation& operation) {
  if (keeps_.contains(operation.name)) return refuse(fmt::format("{} names a kept prefix already", operation.name));
  QUIRE_TRY_ASSIGN(const KeySpaceId space, current_space());
  QUIRE_TRY_ASSIGN(const Kept kept, cache_->keep(space, {operation.tokens}, operation.duration));
  const TimeNs ttl_ns = operation.duration.value_or(INT64_MAX);
  keeps_[operation.name] = {.id = kept.id,
                            .key_space = space,
                            .tokens = {operation.tokens.begin(), operation.tokens.begin() + kept.token_count},
                            .expires_at = ttl_ns > INT64_MAX - now_ ? INT64_MAX : now_ + ttl_ns};
  return fmt::format("holds {} of {}, in {}", kept.token_count, counted(operation.tokens.size(), "token"),
                     counted(kept.token_count / page_tokens_, "page"));
}

Result<std::string> TreeSession::unkeep(const TreeOperation& operation) {
  const auto found = keeps_.find(operation.name);
  if (found == keeps_.end()) return refuse(fmt::format("no kept prefix is named {}", operation.name));
  QUIRE_TRY(cache_->unkeep(found->second.id));
  keeps_.erase(found);
  return std::string("held no longer");
}

Result<std::string> TreeSession::advance(const TreeOperation& operation) {
  const TimeNs duration = operation.duration.value_or(0);
  if (duration > INT64_MAX - now_) return refuse("time does not go that far");
  QUIRE_TRY(cache_->advance(now_ + duration));
  now_ += duration;
  std::vector<std::string> ended;
  for (const auto& [name, kept] : keeps_) {
    if (kept.expires_at <= now_) ended.push_back(name);
  }
  for (const std::string& name : ended) keeps_.erase(name);
  return ended.empty() ? "nothing ends" : fmt::format("held no longer: {}", fmt::join(ended, ", "));
}

// Drawing

std::string TreeSession::title_of(KeySpaceId key_space) const {
  std::string title;
  for (const auto& [name, space] : spaces_) {
    if (space.id != key_space) continue;
    title += title.empty() ? name : " = " + name;
    if (!space.is_known) title += " (dropped)";
  }
  return title;
}

Result<std::vector<TreeSession::Holder>> TreeSession::holders() const {
  std::vector<Holder> holders;
  for (const auto& [name, request] : requests_) {
    QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(request.sequence));
    Holder holder{.label = name, .key_space = request.key_space, .is_waiting = view.is_waiting};
    if (view.is_waiting) {
      holder.label += " (waits)";
      holder.tokens = std::span(request.prompt).first(request.matchable_tokens);
    } else {
      holder.pages.assign(view.pages().begin(), view.pages().end());
    }
    holders.push_back(std::move(holder));
  }
  for (const auto& [name, kept] : keeps_) {
    holders.push_back({.label = name + " (kept)", .key_space = kept.key_space, .pages = {}, .tokens = kept.tokens});
  }
  return holders;
}

// Pins end where a run ends, so who has its last page has all of it. A waiting request has asked for a run
// when its prompt has the run's first page.
std::vector<std::string> TreeSession::names_of_holders(std::span<const Holder> holders, const RunView& run,
                                                       std::span<const TokenId> path) const {
  std::vector<std::string> names;
  const std::size_t first_page_end = (run.first_page + std::size_t{1}) * page_tokens_;
  for (const Holder& holder : holders) {
    if (holder.key_space != run.key_space) continue;
    const bool holds = holder.is_waiting ? run.soft_pin_count > 0 && begins_with(holder.tokens, path, first_page_end)
                       : holder.pages.empty() ? begins_with(holder.tokens, path, path.size())
                                              : std::ranges::count(holder.pages, run.pages.back()) > 0;
    if (holds) names.push_back(holder.label);
  }
  // What is left is a run of which the first step will copy a part.
  if (names.empty() && run.pin_count > 0) names.emplace_back("a copy to make");
  return names;
}

Result<TreeDrawing> TreeSession::drawing() const {
  QUIRE_TRY(cache_->check_invariants());  // nobody should look at a wrong tree
  TreeDrawing drawing;
  QUIRE_TRY_ASSIGN(drawing.stats, cache_->stats());
  QUIRE_TRY_ASSIGN(const std::vector<Holder> holders, this->holders());
  std::vector<TokenId> path;
  std::unordered_set<PageId> cached_pages;
  QUIRE_TRY(cache_->visit_runs([&](const RunView& run) {
    path.resize(std::size_t{run.first_page} * page_tokens_);
    path.insert(path.end(), run.tokens.begin(), run.tokens.end());
    cached_pages.insert(run.pages.begin(), run.pages.end());
    const bool is_root = run.parent.is_none();
    drawing.runs.push_back({.depth = run.depth,
                            .child_count = run.child_count,
                            .title = is_root ? title_of(run.key_space) : "",
                            .tokens = {run.tokens.begin(), run.tokens.end()},
                            .first_token = run.first_page * page_tokens_,
                            .pages = {run.pages.begin(), run.pages.end()},
                            .pin_count = run.pin_count,
                            .soft_pin_count = run.soft_pin_count,
                            .holders = is_root ? std::vector<std::string>() : names_of_holders(holders, run, path)});
  }));

  for (const auto& [name, request] : requests_) {
    QUIRE_TRY_ASSIGN(const SequenceView view, cache_->view(request.sequence));
    std::string state = fmt::format("waits with {}", counted(view.token_count, "token"));
    if (!view.is_waiting) {
      std::vector<PageId> own;
      std::ranges::copy_if(view.pages(), std::back_inserter(own),
                           [&](PageId page) { return !cached_pages.contains(page); });
      state = fmt::format("{} of {} computed", view.computed_tokens, counted(view.token_count, "token"));
      if (!own.empty()) state += fmt::format("; {} of its own: {}", counted(own.size(), "page"), page_list(own, 24));
    }
    drawing.sequences.push_back({name, std::move(state)});
  }
  return drawing;
}

}  // namespace quire
