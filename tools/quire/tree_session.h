// SPDX-License-Identifier: Apache-2.0
//
// TreeSession: a cache without bytes, the requests on it, and what all of it is called in a script. Every
// operation says what it did. single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "commands.h"
#include "quire/quire.h"
#include "tree_drawing.h"
#include "tree_script.h"

namespace quire {

class TreeSession {
 public:
  [[nodiscard]] static Result<TreeSession> open(const TreeOptions& options);

  /// What the operation did, in a few words. `let` and `show` are not for the session: they do nothing here.
  [[nodiscard]] Result<std::string> execute(const TreeOperation& operation);
  [[nodiscard]] Result<TreeDrawing> drawing() const;

 private:
  struct Request {
    Sequence sequence;
    KeySpaceId key_space;
    std::vector<TokenId> prompt;
    std::size_t matchable_tokens = 0;  // of the prompt, that it may find in the cache
  };
  struct KeptPrefix {
    KeepId id;
    KeySpaceId key_space;
    std::vector<TokenId> tokens;  // as far as they are kept
    TimeNs expires_at = 0;
  };
  struct Space {
    KeySpace fields;
    KeySpaceId id;
    bool is_known = false;  // to the cache
  };
  /// What one or more steps did, besides what the statistics tell.
  struct Computed {
    bool ran_last_again = false;
    Shortage shortage;  // pages_needed is 0 when there was none
  };

  /// Somebody who may have a pin or a soft pin on runs.
  struct Holder {
    std::string label;
    KeySpaceId key_space;
    std::vector<PageId> pages;        // a running request: all of its pages
    std::span<const TokenId> tokens;  // a waiting request: what it may find; a kept prefix: all of it
    bool is_waiting = false;
  };

  explicit TreeSession(std::unique_ptr<Cache> cache, const TreeOptions& options)
      : cache_(std::move(cache)), page_tokens_(options.page_tokens) {}

  [[nodiscard]] Result<KeySpaceId> current_space();
  [[nodiscard]] Result<Request*> find_request(const std::string& name);
  [[nodiscard]] Result<std::string> use_space(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> run(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> begin(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> admit(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> step(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> decode(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> end(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> lookup(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> keep(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> unkeep(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> advance(const TreeOperation& operation);
  [[nodiscard]] Result<std::string> drop(const TreeOperation& operation);

  [[nodiscard]] Result<Computed> compute(const Request& request, std::uint32_t token_count,
                                         std::span<const TokenId> answer);
  [[nodiscard]] Result<Computed> compute_answer(const Request& request, std::span<const TokenId> answer);
  [[nodiscard]] std::string text_of(const Computed& computed, const Stats& before, const Stats& after) const;

  [[nodiscard]] std::string title_of(KeySpaceId key_space) const;
  [[nodiscard]] Result<std::vector<Holder>> holders() const;
  [[nodiscard]] std::vector<std::string> names_of_holders(std::span<const Holder> holders, const RunView& run,
                                                          std::span<const TokenId> path) const;

  std::unique_ptr<Cache> cache_;
  std::uint32_t page_tokens_;
  TimeNs now_ = 0;
  std::map<std::string, Space> spaces_;
  std::string space_name_ = "default";
  std::map<std::string, Request> requests_;
  std::map<std::string, KeptPrefix> keeps_;
};

}  // namespace quire
