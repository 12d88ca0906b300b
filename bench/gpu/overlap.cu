// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cublas.cuh"
#include "cuda_rig.cuh"
#include "overlap_work.h"

namespace quire::bench {
namespace {

constexpr int kTokens = 8192;     // that a token sees
constexpr int kNewTokens = 1024;  // that are computed
constexpr int kHidden = 4096;
constexpr int kInner = 14336;  // of the feed-forward part
constexpr int kKvWidth = 1024;

class Layer final : public OverlapWork {
 public:
  explicit Layer(std::unique_ptr<Cublas> cublas)
      : cublas_(std::move(cublas)),
        a_(std::size_t{kHidden} * 2 * kInner * 2, 1),
        b_(std::size_t{kNewTokens} * kInner * 2, 2),
        c_(std::size_t{kNewTokens} * 2 * kInner * 2, 3) {}
  void launch() override {
    for (const Product& product : products()) cublas_->multiply(product);
  }
  [[nodiscard]] double flops() const override {
    double sum = 0;
    for (const Product& product : products()) sum += product.flops();
    return sum;
  }

 private:
  [[nodiscard]] Product product(int rows, int inner) const {
    return {.rows = rows, .columns = kNewTokens, .inner = inner, .a = a_.data(), .b = b_.data(), .c = c_.data()};
  }
  [[nodiscard]] std::vector<Product> products() const {
    return {product(kHidden + (2 * kKvWidth), kHidden),  // Q, K and V
            product(kTokens, kHidden),                   // scores, all heads together
            product(kHidden, kTokens),                   // values, all heads together
            product(kHidden, kHidden),                   // output
            product(2 * kInner, kHidden),
            product(kHidden, kInner)};  // feed-forward
  }

  std::unique_ptr<Cublas> cublas_;
  Buffer a_;
  Buffer b_;
  Buffer c_;
};

}  // namespace

std::unique_ptr<OverlapWork> OverlapWork::open(const std::string& cublas, DeviceStream stream, std::string& why) {
  auto loaded = std::make_unique<Cublas>();
  why = loaded->load(cublas, static_cast<cudaStream_t>(stream.handle));
  return why.empty() ? std::make_unique<Layer>(std::move(loaded)) : nullptr;
}

void check_overlap(const Status& status, const char* what) {
  check(status, what);
}

}  // namespace quire::bench
