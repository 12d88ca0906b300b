// SPDX-License-Identifier: Apache-2.0
//
// SystemDirectory: a directory of SystemFiles, with its lock. Everything in it goes by its open descriptor: when the
// directory is moved or another one takes its place, this one is still the one that was locked.
//
// thread-safe, apart from overlapping calls for one file
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "quire/result.h"
#include "store/block_transfer.h"
#include "store/file_calls.h"
#include "store/file_system.h"
#include "store/file_table.h"

namespace quire {

/// The file by which a directory is locked. It says for people which process has, or had, the directory: digits and a
/// newline. Anything else in it is somebody else's and is left as it is; it locks all the same.
inline constexpr const char* kLockFileName = "quire-lock";

class SystemDirectory final : public StoreDirectory {
 public:
  struct Context {
    FileTable& files;
    const FileCalls& calls;
    std::function<void(const std::string& refusal)> add_refusal;
    bool is_read_only = false;
  };
  [[nodiscard]] static Result<std::unique_ptr<SystemDirectory>> open(const std::string& path, Context context);
  ~SystemDirectory() override;
  SystemDirectory(const SystemDirectory&) = delete;
  SystemDirectory& operator=(const SystemDirectory&) = delete;

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] Result<std::vector<std::string>> list() override;
  [[nodiscard]] Result<FileId> create(const std::string& name, std::uint64_t bytes) override;
  [[nodiscard]] Result<FileId> open(const std::string& name) override;
  void close(FileId file) override;
  [[nodiscard]] Result<std::uint64_t> length(FileId file) override;
  [[nodiscard]] Status set_length(FileId file, std::uint64_t bytes) override;
  [[nodiscard]] Status read(FileId file, std::uint64_t offset, std::span<std::byte> out) override;
  [[nodiscard]] Status write(FileId file, std::uint64_t offset, std::span<const std::byte> bytes) override;
  [[nodiscard]] Status rename(const std::string& from, const std::string& to) override;
  [[nodiscard]] Status remove(const std::string& name) override;
  [[nodiscard]] Status sync_file(FileId file, SyncPoint why) override;
  [[nodiscard]] Status sync_directory(SyncPoint why) override;
  [[nodiscard]] Result<std::uint64_t> free_bytes() override;

  [[nodiscard]] bool is_direct() const { return is_direct_; }

 private:
  SystemDirectory(std::string path, Context context) : path_(std::move(path)), context_(std::move(context)) {}
  [[nodiscard]] Status lock();
  [[nodiscard]] Status share_lock();
  void probe_direct();
  [[nodiscard]] Status reserve(int file, std::uint64_t bytes, const std::string& path);
  [[nodiscard]] Status move_blocks(BlockTransfer transfer, FileId file);
  [[nodiscard]] std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] int file_flags() const;

  const std::string path_;
  const Context context_;
  Descriptor directory_;
  Descriptor lock_;
  bool is_direct_ = false;
};

}  // namespace quire
