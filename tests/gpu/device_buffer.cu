// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/device_buffer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

namespace quire::testing {
namespace {

constexpr std::size_t kGuardBytes = 256;  // what cudaMalloc aligns to
constexpr std::byte kGuard{0xa5};

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::abort();
}
#define QUIRE_CUDA_CALL(call) check((call), #call)

class Stream {
 public:
  Stream() { QUIRE_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { QUIRE_CUDA_CALL(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::string last_cuda_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? "" : cudaGetErrorName(error);
}

std::string why_no_gpu() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  // Makes the context too, which is where a driver that cannot work says so.
  if (error == cudaSuccess && count > 0) error = cudaFree(nullptr);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA-capable device is detected" : "";
}

DeviceBytes::DeviceBytes(std::span<const std::byte> content, std::size_t misalignment)
    : bytes_(content.size()), guard_bytes_(kGuardBytes + misalignment) {
  void* memory = nullptr;
  QUIRE_CUDA_CALL(cudaMalloc(&memory, guard_bytes_ + bytes_ + kGuardBytes));
  memory_ = static_cast<std::byte*>(memory);
  QUIRE_CUDA_CALL(cudaMemset(memory_, std::to_integer<int>(kGuard), guard_bytes_ + bytes_ + kGuardBytes));
  write(content);
}

DeviceBytes::~DeviceBytes() {
  QUIRE_CUDA_CALL(cudaFree(memory_));
}

std::vector<std::byte> DeviceBytes::read() const {
  QUIRE_CUDA_CALL(cudaDeviceSynchronize());
  std::vector<std::byte> all(guard_bytes_ + bytes_ + kGuardBytes);
  QUIRE_CUDA_CALL(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(guard_bytes_);
  const auto end = first + static_cast<std::ptrdiff_t>(bytes_);
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  if (!std::all_of(all.begin(), first, is_guard) || !std::all_of(end, all.end(), is_guard)) {
    std::fprintf(stderr, "a kernel wrote outside of a buffer of %zu bytes\n", bytes_);
    std::abort();
  }
  return {first, end};
}

void DeviceBytes::write(std::span<const std::byte> content) {
  if (content.size() != bytes_) std::abort();
  if (bytes_ > 0) QUIRE_CUDA_CALL(cudaMemcpy(data(), content.data(), bytes_, cudaMemcpyHostToDevice));
  QUIRE_CUDA_CALL(cudaDeviceSynchronize());  // streams of the tests wait for no other
}

Status run_on_gpu(Launching launching, const std::function<Status(DeviceStream)>& launch, std::uint32_t times,
                  const std::function<void(std::uint32_t)>& before_run) {
  const Stream stream;
  const DeviceStream handle{.handle = stream.get()};
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Status done;
  if (launching == Launching::FromAGraph) {
    // Any call that a capture does not allow fails, on whatever stream.
    QUIRE_CUDA_CALL(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    (void)(done = launch(handle));  // nvcc takes the assignment for a result that nobody looks at
    QUIRE_CUDA_CALL(cudaStreamEndCapture(stream.get(), &graph));
    if (done) QUIRE_CUDA_CALL(cudaGraphInstantiate(&executable, graph, 0));
  }
  for (std::uint32_t run = 0; done && run < times; ++run) {
    if (before_run) before_run(run);
    if (launching == Launching::FromAGraph) {
      QUIRE_CUDA_CALL(cudaGraphLaunch(executable, stream.get()));
    } else {
      (void)(done = launch(handle));  // nvcc takes the assignment for a result that nobody looks at
    }
    QUIRE_CUDA_CALL(cudaStreamSynchronize(stream.get()));
  }
  if (executable != nullptr) QUIRE_CUDA_CALL(cudaGraphExecDestroy(executable));
  if (graph != nullptr) QUIRE_CUDA_CALL(cudaGraphDestroy(graph));
  return done;
}

GpuGraph::GpuGraph(DeviceStream stream, const std::function<Status(DeviceStream)>& launch) {
  const auto handle = static_cast<cudaStream_t>(stream.handle);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  QUIRE_CUDA_CALL(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal));
  const Status done = launch(stream);
  QUIRE_CUDA_CALL(cudaStreamEndCapture(handle, &graph));
  if (!done) {
    std::fprintf(stderr, "capturing: %s\n", done.error().message.c_str());
    std::abort();
  }
  QUIRE_CUDA_CALL(cudaGraphInstantiate(&executable, graph, 0));
  graph_ = graph;
  executable_ = executable;
}

GpuGraph::~GpuGraph() {
  QUIRE_CUDA_CALL(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)));
  QUIRE_CUDA_CALL(cudaGraphDestroy(static_cast<cudaGraph_t>(graph_)));
}

void GpuGraph::launch(DeviceStream stream) const {
  QUIRE_CUDA_CALL(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), static_cast<cudaStream_t>(stream.handle)));
}

}  // namespace quire::testing
