// SPDX-License-Identifier: Apache-2.0
//
// SystemFiles: the FileSystem of the operating system. Files are opened with O_DIRECT, requests go through io_uring
// with registered buffers, and the room of new files is reserved; what the system or the file system refuses is done
// without and told by mode(). Files are their owner's only.
//
// A directory is locked, and so is a file in it, `quire-lock`, which also says for people which process has it. The
// locks belong to the open files: a child that is forked shares them until it ends or its parent gives them back.
//
// thread-safe
#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "store/file_calls.h"
#include "store/file_system.h"
#include "store/file_table.h"

namespace quire {

class SystemFiles final : public FileSystem {
 public:
  /// `calls` must outlive it, and it must outlive its directories and queues.
  explicit SystemFiles(const FileCalls& calls = FileCalls::real());

  [[nodiscard]] Result<std::unique_ptr<StoreDirectory>> open_directory(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<StoreDirectory>> open_directory_to_read(const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<IoQueue>> make_queue(const IoQueueConfig& config) override;
  [[nodiscard]] std::uint32_t open_files_max() const override;
  [[nodiscard]] IoMode mode() const override;

  /// For its directories: something was asked for and refused.
  void add_refusal(const std::string& refusal);

 private:
  [[nodiscard]] Result<std::unique_ptr<StoreDirectory>> open_directory(const std::string& path, bool is_read_only);

  const FileCalls& calls_;
  FileTable files_;
  mutable Mutex mutex_;  // guards what follows
  IoMode mode_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire
