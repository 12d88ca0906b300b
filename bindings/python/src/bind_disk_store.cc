// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "cache_state.h"
#include "casters.h"
#include "errors.h"
#include "quire/disk_store.h"
#include "structs.h"

namespace quire::python {

void bind_disk_store(nb::module_& module) {
  enum_class<DiskSegmentState>(module, "DiskSegmentState", "What was found of one file of a disk store.")
      .value("Sealed", DiskSegmentState::Sealed, "complete: its footer lists what is in it")
      .value("Open", DiskSegmentState::Open,
             "without a footer: somebody writes it, or ended before it was complete. Opening the store seals it.")
      .value("Damaged", DiskSegmentState::Damaged, "its header or footer cannot be read")
      .value("Empty", DiskSegmentState::Empty, "made and never written")
      .value("Newer", DiskSegmentState::Newer, "a newer quire wrote it")
      .value("Foreign", DiskSegmentState::Foreign,
             "of another store, or under a wrong name: never read, never removed");

  enum_class<DiskRepair>(module, "DiskRepair", "What a repair did about a fault.")
      .value("NotAsked", DiskRepair::NotAsked)
      .value("Dropped", DiskRepair::Dropped, "the record is gone")
      .value("Mended", DiskRepair::Mended,
             "everything that it was about is still there: written anew from a copy that is good")
      .value("Removed", DiskRepair::Removed, "the file is gone: nothing in it could be read")
      .value("Left", DiskRepair::Left, "not to be repaired here: a newer quire's, or the file system says no");

  StructClass<DiskDirectoryReport>(module, "DiskDirectoryReport", "One directory of a disk store.")
      .value("path", &DiskDirectoryReport::path)
      .value("file_bytes", &DiskDirectoryReport::file_bytes, "of its segments")
      .value("segment_count", &DiskDirectoryReport::segment_count)
      .value("is_in_use", &DiskDirectoryReport::is_in_use, "a process has it open")
      .value("process", &DiskDirectoryReport::process, "which, where that is known")
      .value("foreign_files", &DiskDirectoryReport::foreign_files, "that are no part of a store")
      .value("group_stores", &DiskDirectoryReport::group_stores,
             "directories in it that are stores of groups or of shards of ranks; look at them one by one")
      .value("free_bytes", &DiskDirectoryReport::free_bytes, "what the file system has left")
      .without_constructor();

  StructClass<DiskSegmentReport>(module, "DiskSegmentReport", "One file of a disk store.")
      .value("directory_index", &DiskSegmentReport::directory_index)
      .value("file", &DiskSegmentReport::file, "\"segment-0000000000000001\"")
      .value("state", &DiskSegmentReport::state)
      .value("why", &DiskSegmentReport::why, "of one that is damaged, newer or foreign")
      .value("file_bytes", &DiskSegmentReport::file_bytes, "length of the file")
      .value("page_count", &DiskSegmentReport::page_count, "pages in it, found or not")
      .value("live_pages", &DiskSegmentReport::live_pages, "that can be found")
      .value("live_bytes", &DiskSegmentReport::live_bytes,
             "of their records, and of those that pages need: key spaces, tombstones")
      .value("garbage_bytes", &DiskSegmentReport::garbage_bytes, "that goes when the segment is reclaimed")
      .value("tombstone_count", &DiskSegmentReport::tombstone_count, "records that pages are gone")
      .value("torn_count", &DiskSegmentReport::torn_count, "places that begin like a record and are none")
      .without_constructor();

  StructClass<DiskKeySpaceReport>(module, "DiskKeySpaceReport", "One key space of a disk store.")
      .value("name", &DiskKeySpaceReport::name, "64 hexadecimal digits")
      .value("text", &DiskKeySpaceReport::text,
             "What it is called; its salt is not written to disk. Unset when no record says so.")
      .value("is_salted", &DiskKeySpaceReport::is_salted)
      .value("page_count", &DiskKeySpaceReport::page_count, "live")
      .value("bytes", &DiskKeySpaceReport::bytes, "of these pages, before compression")
      .value("newest_ns", &DiskKeySpaceReport::newest_ns, "since 1970; when the newest of them was written")
      .without_constructor();

  StructClass<DiskLayoutReport>(module, "DiskLayoutReport", "One layout of the pages of a disk store.")
      .value("hash", &DiskLayoutReport::hash)
      .value("page_bytes", &DiskLayoutReport::page_bytes)
      .value("page_count", &DiskLayoutReport::page_count, "live")
      .without_constructor();

  StructClass<DiskAgeReport>(
      module, "DiskAgeReport",
      "Live pages that were written no longer ago than this, and longer ago than what the age before says.")
      .value("age_ns_max", &DiskAgeReport::age_ns_max, "the highest value: all others")
      .value("page_count", &DiskAgeReport::page_count)
      .without_constructor();

  StructClass<DiskStoreReport>(module, "DiskStoreReport", "What inspect_disk_store() found.")
      .value("store_id", &DiskStoreReport::store_id, "32 hexadecimal digits")
      .value("created_at_ns", &DiskStoreReport::created_at_ns)
      .value("directories", &DiskStoreReport::directories)
      .value("segments", &DiskStoreReport::segments)
      .value("key_spaces", &DiskStoreReport::key_spaces, "those with most bytes first")
      .value("layouts", &DiskStoreReport::layouts, "those with most pages first")
      .value("ages", &DiskStoreReport::ages, "youngest first")
      .value("file_bytes", &DiskStoreReport::file_bytes)
      .value("page_count", &DiskStoreReport::page_count,
             "live: of each name and layout the newest, if it was not dropped since")
      .value("page_bytes", &DiskStoreReport::page_bytes, "of these, before compression")
      .value("compressed_pages", &DiskStoreReport::compressed_pages)
      .value("live_bytes", &DiskStoreReport::live_bytes)
      .value("garbage_bytes", &DiskStoreReport::garbage_bytes)
      .value("tombstone_count", &DiskStoreReport::tombstone_count)
      .value("oldest_ns", &DiskStoreReport::oldest_ns, "since 1970, of live pages")
      .value("newest_ns", &DiskStoreReport::newest_ns)
      .without_constructor();

  StructClass<DiskFault>(module, "DiskFault", "Something that is not as it was written.")
      .value("directory_index", &DiskFault::directory_index)
      .value("file", &DiskFault::file)
      .value("offset", &DiskFault::offset, "of the record in it; unset: the file as a whole")
      .value("name", &DiskFault::name, "64 hexadecimal digits, of a page or key space; empty: not known")
      .value("why", &DiskFault::why)
      .value("repair", &DiskFault::repair)
      .without_constructor();

  StructClass<VerifyProgress>(module, "VerifyProgress", "How far verify_disk_store() is.")
      .value("done_bytes", &VerifyProgress::done_bytes)
      .value("all_bytes", &VerifyProgress::all_bytes)
      .value("fault_count", &VerifyProgress::fault_count)
      .without_constructor();

  StructClass<VerifyReport>(module, "VerifyReport", "What verify_disk_store() found.")
      .value("directories", &VerifyReport::directories)
      .value("segment_count", &VerifyReport::segment_count, "that were looked at")
      .value("record_count", &VerifyReport::record_count, "good ones")
      .value("page_count", &VerifyReport::page_count, "of these")
      .value("compressed_pages", &VerifyReport::compressed_pages)
      .value("file_bytes", &VerifyReport::file_bytes, "of the segments that were looked at")
      .value("faults", &VerifyReport::faults)
      .value("unfinished_count", &VerifyReport::unfinished_count,
             "Records without a footer that were not complete while a process had the store: on their way to disk.")
      .value("is_complete", &VerifyReport::is_complete, "false: stopped by on_progress")
      .without_constructor()
      .def_prop_ro("is_clean", &VerifyReport::is_clean, "Nothing is bad, or nothing any more.");

  module.def(
      "inspect_disk_store",
      [](const std::vector<std::filesystem::path>& paths) {
        const std::vector<std::string> directories(paths.begin(), paths.end());
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        const InspectOptions options{.now_ns = std::chrono::nanoseconds(now).count()};
        Result<DiskStoreReport> report = [&] {
          const WithoutGil without;
          return inspect_disk_store(directories, options);
        }();
        return take(std::move(report));
      },
      nb::arg("directories"), "What the store in these directories has. Reads only; others may have it open.",
      nb::sig("def inspect_disk_store(directories: collections.abc.Sequence[str | os.PathLike[str]]) -> "
              "DiskStoreReport"));
  module.def(
      "verify_disk_store",
      [](const std::vector<std::filesystem::path>& paths, bool repair, const nb::object& on_progress) {
        const std::vector<std::string> directories(paths.begin(), paths.end());
        VerifyOptions options{.repair = repair, .on_progress = nullptr};
        options.on_progress = [&](const VerifyProgress& progress) {
          const nb::gil_scoped_acquire acquire;
          if (PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0) return false;
          if (on_progress.is_none()) return true;
          PyObject* answer = PyObject_CallOneArg(on_progress.ptr(), nb::cast(progress).ptr());
          if (answer == nullptr) return false;
          const nb::object owned = nb::steal(answer);
          return owned.is_none() || PyObject_IsTrue(answer) == 1;
        };
        Result<VerifyReport> report = [&] {
          const WithoutGil without;
          return verify_disk_store(directories, options);
        }();
        if (PyErr_Occurred() != nullptr) throw nb::python_error();
        return take(std::move(report));
      },
      nb::arg("directories"), nb::arg("repair") = false, nb::arg("on_progress") = nb::none(),
      "Reads every record and compares it with its checksum; repair drops what is bad. on_progress(VerifyProgress) is "
      "called now and then, and ends it by returning False.",
      nb::sig("def verify_disk_store(directories: collections.abc.Sequence[str | os.PathLike[str]], repair: bool = "
              "False, on_progress: collections.abc.Callable[[VerifyProgress], bool | None] | None = None) -> "
              "VerifyReport"));
}

}  // namespace quire::python
