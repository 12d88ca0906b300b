// SPDX-License-Identifier: Apache-2.0
//
// Prompts and step entries as Python gives them: arrays stay the caller's, and are read when a call needs them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arrays.h"
#include "casters.h"
#include "quire/cache.h"

namespace quire::python {

/// Prompt: tokens and extra keys.
struct PromptHandle {
  nb::object tokens;
  std::vector<ExtraKey> extra_keys;
};

/// A Prompt that can be passed on, from a PromptHandle or from tokens alone.
class PromptView {
 public:
  PromptView(nb::handle source, std::vector<TokenId>& scratch, const char* what = "tokens",
             std::span<TokenId> place = {});
  [[nodiscard]] const Prompt& operator*() const { return prompt_; }

 private:
  static nb::handle tokens_of(nb::handle source);

  Tokens tokens_;
  std::vector<ExtraKey> extra_keys_;
  Prompt prompt_;
};

struct StepResultHandle {
  nb::object tokens = nb::tuple();
  std::uint32_t accepted_count = 0;
  bool discard = false;
};

}  // namespace quire::python
