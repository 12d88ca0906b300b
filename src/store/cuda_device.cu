// SPDX-License-Identifier: Apache-2.0
//
// Device on a GPU. Calls are made with this device selected, and leave the thread's selection as they found it: a
// thread of the engine's may be at work on another one.
#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/blocked_signals.h"
#include "kernels/launch.cuh"
#include "quire/device.h"
#include "quire/device_kernels.h"

namespace quire {
namespace {

constexpr std::size_t kSystemPage = 4096;
// Registering is the kernel's work on one page after the other: several threads share it (8 threads take a ninth of the
// time of one).
constexpr std::size_t kPieceBytes = std::size_t{64} << 20U;
constexpr unsigned kRegisterThreads = 8;

// Whether somebody has used a device in this process. To select one that nobody has would make it take memory.
bool is_in_use(int index) {
  using GetState = CUresult (*)(CUdevice, unsigned int*, int*);
  static const GetState get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState>(function)
                                                                        : nullptr;
  }();
  unsigned int flags = 0;
  int is_active = 0;
  return get_state == nullptr || get_state(index, &flags, &is_active) != CUDA_SUCCESS || is_active != 0;
}

// Calls are about this device for as long as it lives, and about the thread's own choice again behind it. A thread that
// never chose has device 0: it keeps ours, since going back would start that one.
class SelectedDevice {
 public:
  explicit SelectedDevice(int index) {
    status_ = cudaGetDevice(&before_);
    if (status_ != cudaSuccess || before_ == index) return;
    status_ = cudaSetDevice(index);
    goes_back_ = status_ == cudaSuccess && is_in_use(before_);
  }
  ~SelectedDevice() {
    if (goes_back_) (void)cudaSetDevice(before_);
  }
  SelectedDevice(const SelectedDevice&) = delete;
  SelectedDevice& operator=(const SelectedDevice&) = delete;
  [[nodiscard]] Status status() const { return cuda_status(status_, "selecting the device"); }

 private:
  int before_ = 0;
  bool goes_back_ = false;
  cudaError_t status_ = cudaSuccess;
};

cudaStream_t handle_of(DeviceStream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

cudaEvent_t handle_of(DeviceEvent event) {
  return static_cast<cudaEvent_t>(event.handle);
}

class CudaDevice : public Device {
 public:
  CudaDevice(int index, const cudaDeviceProp& properties, std::string pci_bus_id)
      : index_(index),
        name_(properties.name),
        multiprocessor_count_(static_cast<std::uint32_t>(properties.multiProcessorCount)),
        pci_bus_id_(std::move(pci_bus_id)) {}

  [[nodiscard]] std::uint32_t index() const override { return static_cast<std::uint32_t>(index_); }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessor_count() const override { return multiprocessor_count_; }
  [[nodiscard]] std::string pci_bus_id() const override { return pci_bus_id_; }

  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes) override {
    const SelectedDevice selected(index_);
    QUIRE_TRY(selected.status());
    void* memory = nullptr;
    QUIRE_TRY(cuda_status(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)),
                          "allocating " + std::to_string(bytes) + " bytes on " + text()));
    if (Status status = clear(memory, bytes); !status) {
      (void)cudaFree(memory);
      return tl::unexpected(std::move(status.error()));
    }
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory) override {
    const SelectedDevice selected(index_);
    (void)cudaFree(memory);
  }

  [[nodiscard]] Status register_host(std::span<std::byte> memory, std::size_t unit_bytes) override;
  void unregister_host(std::span<std::byte> memory) override;

  [[nodiscard]] Result<DeviceStream> create_stream(StreamPriority priority) override {
    const SelectedDevice selected(index_);
    QUIRE_TRY(selected.status());
    int least = 0;
    int greatest = 0;
    QUIRE_TRY(cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities"));
    cudaStream_t stream = nullptr;
    QUIRE_TRY(cuda_status(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                       priority == StreamPriority::High ? greatest : least),
                          "making a stream on " + text()));
    return DeviceStream{stream};
  }
  void destroy_stream(DeviceStream stream) override {
    const SelectedDevice selected(index_);
    (void)cudaStreamDestroy(handle_of(stream));
  }

  [[nodiscard]] Result<DeviceEvent> create_event() override {
    const SelectedDevice selected(index_);
    QUIRE_TRY(selected.status());
    cudaEvent_t event = nullptr;
    QUIRE_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event on " + text()));
    return DeviceEvent{event};
  }
  void destroy_event(DeviceEvent event) override {
    const SelectedDevice selected(index_);
    (void)cudaEventDestroy(handle_of(event));
  }

  [[nodiscard]] Status record(DeviceEvent event, DeviceStream stream) override {
    const SelectedDevice selected(index_);
    return cuda_status(cudaEventRecord(handle_of(event), handle_of(stream)), "recording an event");
  }
  [[nodiscard]] Status wait(DeviceStream stream, DeviceEvent event) override {
    const SelectedDevice selected(index_);
    return cuda_status(cudaStreamWaitEvent(handle_of(stream), handle_of(event), 0), "waiting for an event");
  }
  [[nodiscard]] Result<bool> has_happened(DeviceEvent event) override {
    const SelectedDevice selected(index_);
    const cudaError_t error = cudaEventQuery(handle_of(event));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // It is an answer, and the thread's next caller must not take it for its own.
      return false;
    }
    QUIRE_TRY(cuda_status(error, "asking for an event"));
    return true;
  }
  [[nodiscard]] Status synchronize(DeviceStream stream) override {
    const SelectedDevice selected(index_);
    return cuda_status(cudaStreamSynchronize(handle_of(stream)), "waiting for a stream");
  }

  [[nodiscard]] Status copy(std::byte* target, const std::byte* source, std::size_t bytes,
                            DeviceStream stream) override {
    const SelectedDevice selected(index_);
    QUIRE_TRY(selected.status());
    const cudaError_t error = cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, handle_of(stream));
    if (error == cudaSuccess) return {};  // before any text is made
    return cuda_status(error, "copying " + std::to_string(bytes) + " bytes");
  }
  [[nodiscard]] Status copy_all(const CopyList& copies, DeviceStream stream) override {
    if (copies.bytes.empty()) return {};
    const SelectedDevice selected(index_);
    QUIRE_TRY(selected.status());
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first_of_attributes = 0;
    // The runtime's arrays are of pointers that are not const; it writes none of them.
    auto* const targets = const_cast<const void**>(reinterpret_cast<void* const*>(copies.targets.data()));
    auto* const sources = const_cast<const void**>(reinterpret_cast<const void* const*>(copies.sources.data()));
    const cudaError_t error = cudaMemcpyBatchAsync(targets, sources, copies.bytes.data(), copies.bytes.size(),
                                                   &attributes, &first_of_attributes, 1, handle_of(stream));
    if (error == cudaSuccess) return {};
    return cuda_status(error, "copying " + std::to_string(copies.bytes.size()) + " pieces");
  }
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams& params, DeviceStream stream) override {
    const SelectedDevice selected(index_);  // a kernel starts on no stream of a device that is not
    QUIRE_TRY(selected.status());
    return launch_move_fragments(params, stream);
  }
  [[nodiscard]] Status finish_checksums(const FinishChecksumsParams& params, DeviceStream stream) override {
    const SelectedDevice selected(index_);
    QUIRE_TRY(selected.status());
    return launch_finish_checksums(params, stream);
  }

 private:
  struct Registered {
    std::byte* data = nullptr;
    std::vector<std::byte*> pieces;
  };
  // On a stream of its own: nobody else's work is waited for, or disturbed while it is being captured.
  [[nodiscard]] static Status clear(void* memory, std::size_t bytes) {
    cudaStream_t stream = nullptr;
    QUIRE_TRY(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
    cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    return cuda_status(error, "clearing memory");
  }
  [[nodiscard]] std::string text() const { return "device " + std::to_string(index_) + " (" + name_ + ")"; }

  const int index_;
  const std::string name_;
  const std::uint32_t multiprocessor_count_;
  const std::string pci_bus_id_;
  std::mutex mutex_;                    // guards registered_
  std::vector<Registered> registered_;  // what was cut into pieces
};

Status CudaDevice::register_host(std::span<std::byte> memory, std::size_t unit_bytes) {
  // A piece ends where a unit and a page of the system end together.
  const std::size_t step = std::lcm(std::max<std::size_t>(unit_bytes, 1), kSystemPage);
  const std::size_t piece_bytes = std::max(step, kPieceBytes / step * step);
  const std::size_t piece_count = memory.empty() ? 0 : ((memory.size() - 1) / piece_bytes) + 1;
  std::vector<cudaError_t> errors(piece_count, cudaErrorNotReady);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    const SelectedDevice selected(index_);
    for (std::size_t i = next++; i < piece_count; i = next++) {
      std::byte* const piece = memory.data() + (i * piece_bytes);
      const std::size_t bytes = std::min(piece_bytes, memory.size() - (i * piece_bytes));
      // Taken from the system here, without its locks being held across all threads: registering memory that is not
      // there yet takes five times as long. What is there stays as it is.
      for (std::size_t at = 0; at < bytes; at += kSystemPage) {
        std::atomic_ref<std::uint8_t>(reinterpret_cast<std::uint8_t&>(piece[at]))
            .fetch_or(0, std::memory_order_relaxed);
      }
      errors[i] = cudaHostRegister(piece, bytes, cudaHostRegisterPortable);
    }
  };
  std::vector<std::thread> threads;
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t thread_count = std::min<std::size_t>({piece_count, kRegisterThreads, cores});
  {
    const BlockedSignals blocked;
    try {
      for (std::size_t i = 1; i < thread_count; ++i) threads.emplace_back(work);
    } catch (const std::system_error&) {
      // Then those that there are do all of it.
    }
  }
  work();
  for (std::thread& thread : threads) thread.join();

  Registered registered{.data = memory.data(), .pieces = {}};
  cudaError_t first_error = cudaSuccess;
  for (std::size_t i = 0; i < piece_count; ++i) {
    if (errors[i] == cudaSuccess) registered.pieces.push_back(memory.data() + (i * piece_bytes));
    if (first_error == cudaSuccess) first_error = errors[i];
  }
  if (first_error == cudaSuccess) {
    const std::lock_guard lock(mutex_);
    registered_.push_back(std::move(registered));
    return {};
  }
  for (std::byte* const piece : registered.pieces) (void)cudaHostUnregister(piece);
  return cuda_status(first_error,
                     "registering " + std::to_string(memory.size()) + " bytes of host memory with " + text());
}

void CudaDevice::unregister_host(std::span<std::byte> memory) {
  Registered found;
  {
    const std::lock_guard lock(mutex_);
    const auto it = std::find_if(registered_.begin(), registered_.end(),
                                 [&](const Registered& registered) { return registered.data == memory.data(); });
    if (it == registered_.end()) return;
    found = std::move(*it);
    registered_.erase(it);
  }
  const SelectedDevice selected(index_);
  for (std::byte* const piece : found.pieces) (void)cudaHostUnregister(piece);
}

}  // namespace

Result<std::uint32_t> cuda_device_count() {
  int count = 0;
  QUIRE_TRY(cuda_status(cudaGetDeviceCount(&count), "looking for GPUs"));
  return static_cast<std::uint32_t>(count);
}

Result<std::unique_ptr<Device>> open_cuda_device(std::uint32_t index) {
  QUIRE_TRY_ASSIGN(const std::uint32_t count, cuda_device_count());
  if (index >= count) {
    return fail(ErrorCode::InvalidArgument,
                "opening GPU " + std::to_string(index) + ": there are " + std::to_string(count) + ", counted from 0");
  }
  const auto device = static_cast<int>(index);
  cudaDeviceProp properties{};
  QUIRE_TRY(cuda_status(cudaGetDeviceProperties(&properties, device), "asking for the properties of a GPU"));
  int reaches_host = 0;
  QUIRE_TRY(cuda_status(cudaDeviceGetAttribute(&reaches_host, cudaDevAttrCanUseHostPointerForRegisteredMem, device),
                        "asking whether a GPU reaches registered memory"));
  if (reaches_host == 0) {
    return fail(ErrorCode::Unsupported, "GPU " + std::to_string(index) + " (" + properties.name +
                                            ") does not reach registered host memory at its own address");
  }
  // Without it nothing is amiss but that memory may lie far away.
  std::array<char, 32> pci_bus_id{};
  if (cudaDeviceGetPCIBusId(pci_bus_id.data(), static_cast<int>(pci_bus_id.size()), device) != cudaSuccess) {
    (void)cudaGetLastError();
    pci_bus_id = {};
  }
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(device, properties, pci_bus_id.data()));
}

}  // namespace quire
