// SPDX-License-Identifier: Apache-2.0
#include "metrics/text.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string_view>

namespace quire {
namespace {

std::string text_of(double value) {
  if (std::isnan(value)) return "Nan";
  if (std::isinf(value)) return value < 0 ? "-Inf" : "+Inf";
  std::array<char, 40> text{};
  (void)std::snprintf(text.data(), text.size(), "%.*g", std::numeric_limits<double>::max_digits10 - 1, value);
  return text.data();
}

std::string escaped(std::string_view value) {
  std::string text;
  for (const char character : value) {
    if (character == '\\' || character == '"') text.push_back('\\');
    if (character == '\n') {
      text += "\\n";
    } else {
      text.push_back(character);
    }
  }
  return text;
}

/// One line: a name, the labels, one more label where `extra` has a name, and the value.
void add_sample(std::string& text, const MetricFamily& family, std::string_view suffix, const Metric& metric,
                const MetricLabel& extra, const std::string& value) {
  text.append(family.name).append(suffix);
  std::string labels;
  const auto add = [&](const MetricLabel& label) {
    labels += labels.empty() ? "{" : ",";
    labels.append(label.name).append("=\"").append(escaped(label.value)).append("\"");
  };
  for (const MetricLabel& label : metric.labels) add(label);
  if (!extra.name.empty()) add(extra);
  if (!labels.empty()) text += labels + "}";
  text += " " + value + "\n";
}

void add_histogram(std::string& text, const MetricFamily& family, const Metric& metric) {
  const Histogram& observed = metric.histogram;
  add_sample(text, family, "_count", metric, {}, std::to_string(observed.count));
  add_sample(text, family, "_sum", metric, {}, text_of(observed.sum));
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i <= family.bounds.size(); ++i) {
    cumulative += observed.counts[i];
    const double bound = i < family.bounds.size() ? family.bounds[i] : std::numeric_limits<double>::infinity();
    add_sample(text, family, "_bucket", metric, {"le", text_of(bound)}, std::to_string(cumulative));
  }
}

std::string_view name_of(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Histogram:
      return "histogram";
  }
  return "untyped";
}

}  // namespace

std::string text_of(std::span<const MetricFamily> families) {
  std::string text;
  for (const MetricFamily& family : families) {
    text.append("# HELP ").append(family.name).append(" ").append(family.help).append("\n");
    text.append("# TYPE ").append(family.name).append(" ").append(name_of(family.type)).append("\n");
    for (const Metric& metric : family.metrics) {
      if (family.type == MetricType::Histogram) {
        add_histogram(text, family, metric);
      } else {
        add_sample(text, family, "", metric, {}, text_of(metric.value));
      }
    }
  }
  return text;
}

}  // namespace quire
