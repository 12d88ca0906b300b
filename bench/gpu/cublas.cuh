// SPDX-License-Identifier: Apache-2.0
//
// Cublas: matrix products of cuBLAS, which is looked for at run time: the binary runs without it, and says so.
//
// single-threaded
#pragma once

#include <dlfcn.h>

#include <string>

#include "cuda_rig.cuh"

namespace quire::bench {

/// c = a^T b, in bf16 with sums in fp32; columns lie one behind the other.
struct Product {
  int rows = 0;     ///< of c
  int columns = 0;  ///< of c
  int inner = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;

  [[nodiscard]] double flops() const { return 2.0 * rows * columns * inner; }
};

class Cublas {
 public:
  /// Empty if it can be used, on this stream from now on.
  [[nodiscard]] std::string load(const std::string& path, cudaStream_t stream) {
    void* const library = dlopen(path.empty() ? "libcublas.so.13" : path.c_str(), RTLD_NOW);
    if (library == nullptr) return dlerror();
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<int (*)(void*, cudaStream_t)>(dlsym(library, "cublasSetStream_v2"));
    multiply_ = reinterpret_cast<Multiply>(dlsym(library, "cublasGemmEx"));
    if (create == nullptr || set_stream == nullptr || multiply_ == nullptr) return "cuBLAS lacks a function";
    if (create(&handle_) != 0 || set_stream(handle_, stream) != 0) return "cuBLAS does not start";
    return {};
  }
  void multiply(const Product& product) {
    constexpr int kBf16 = 14;         // CUDA_R_16BF
    constexpr int kComputeFp32 = 68;  // CUBLAS_COMPUTE_32F
    constexpr int kDefaultAlgo = -1;  // CUBLAS_GEMM_DEFAULT
    constexpr int kTransposed = 1;
    constexpr int kPlain = 0;
    const float one = 1;
    const float zero = 0;
    if (multiply_(handle_, kTransposed, kPlain, product.rows, product.columns, product.inner, &one, product.a, kBf16,
                  product.inner, product.b, kBf16, product.inner, &zero, product.c, kBf16, product.rows, kComputeFp32,
                  kDefaultAlgo) != 0) {
      check(cudaErrorUnknown, "multiplying with cuBLAS");
    }
  }

 private:
  using Multiply = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                           const void*, void*, int, int, int, int);
  void* handle_ = nullptr;
  Multiply multiply_ = nullptr;
};

}  // namespace quire::bench
