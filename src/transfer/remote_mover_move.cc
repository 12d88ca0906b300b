// SPDX-License-Identifier: Apache-2.0
//
// Loads, stores and direct calls: what they move are pages of one pool, as many as fit, with their names. group() makes
// extents of them; get() and ask() have them read and written, whosever pages they are, and say in PageRow::end what
// became of each.
#include <algorithm>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/mutants.h"
#include "store/record_payload.h"
#include "transfer/remote_mover_impl.h"

namespace quire {

// Extents

// The name of the extent that an item is of, which is that of its last page; null when that is not known.
const PageName* RemoteMover::Impl::extent_of(const Flight& flight, const Item& item) {
  const LowerPlan& plan = flight.plan;
  const std::uint32_t page = item.first + item.count - 1;
  const PageNames::Record& record = queue->records(flight.index)[page];
  const std::uint32_t behind = extent_pages(flight.pool) - 1 - (record.page_index % extent_pages(flight.pool));
  if (behind == 0) return &record.name;
  if (plan.kind == TransferKind::LoadFromBelow) {
    const std::size_t last = std::size_t{plan.pages[page].place} + behind;
    return last < flights[plan.found_by].named_pages ? &queue->path(plan.found_by)[last] : nullptr;
  }
  const std::size_t last = std::size_t{record.page_index} + behind;
  const bool is_named = plan.kind == TransferKind::GetFromBelow && last < plan.tokens.size() / config.names.page_tokens;
  return is_named ? &queue->path(flight.index)[last] : nullptr;
}

// Makes items of the flight's pages, as far as they belong to an extent that has a name, and to no key space that is
// being dropped. What is written is whole.
void RemoteMover::Impl::group(Flight& flight) {
  const std::span<const PageNames::Record> records = queue->records(flight.index).first(flight.page_count);
  const std::uint32_t extent = extent_pages(flight.pool);
  const bool is_write = flight.plan.kind == TransferKind::StoreBelow || flight.plan.kind == TransferKind::PutBelow;
  flight.item_count = 0;
  for (std::uint32_t first = 0; first < flight.page_count;) {
    const PageNames::Record& record = records[first];
    Item item{.first = first, .count = 1, .front = record.page_index % extent};
    const auto follows = [&](std::uint32_t page) {
      return records[page].parent == records[page - 1].name && records[page].key_space == record.key_space &&
             records[page].page_index == records[page - 1].page_index + 1;
    };
    while (item.front + item.count < extent && first + item.count < flight.page_count && !record.name.is_none() &&
           follows(first + item.count)) {
      ++item.count;
    }
    first += item.count;
    const bool is_known = !record.name.is_none() && extent_of(flight, item) != nullptr;
    const bool is_hidden = is_known && queue->is_dropping(record.key_space);
    if (is_write && (!is_known || item.count < extent)) {
      skip(flight, item, PageEnd::NotWritten);
    } else if (is_write && is_hidden) {
      skip(flight, item, PageEnd::Hidden);
    } else if (!is_known || is_hidden) {
      end_pages(flight, item, PageEnd::Absent);
    } else {
      items_of(flight)[flight.item_count++] = item;
    }
  }
}

void RemoteMover::Impl::end_pages(Flight& flight, const Item& item, PageEnd end) {
  for (std::uint32_t i = 0; i < item.count; ++i) pages_of(flight)[item.first + i].end = end;
}

void RemoteMover::Impl::skip(Flight& flight, const Item& item, PageEnd end) {
  end_pages(flight, item, end);
  count(&RemoteMoverStats::skipped_pages, item.count);
}

// Reading

// Headers go to the flight's row, pages to where they are wanted, and others of their extents to where nobody looks.
void RemoteMover::Impl::get(Flight& flight) {
  group(flight);
  const std::uint32_t extent = extent_pages(flight.pool);
  const std::span<std::span<std::byte>> pieces = targets_of(flight);
  std::size_t piece_count = 0;
  for (std::uint32_t i = 0; i < flight.item_count; ++i) {
    const Item& item = items_of(flight)[i];
    const std::size_t first_piece = piece_count;
    pieces[piece_count++] = headers_of(flight).subspan(i * extent_headers_bytes(extent), extent_headers_bytes(extent));
    for (std::uint32_t page = 0; page < extent; ++page) {
      const bool is_wanted = page >= item.front && page < item.front + item.count;
      // A path has unwanted pages in its first and its last extent only.
      pieces[piece_count++] = is_wanted ? pages_of(flight)[item.first + page - item.front].memory
                                        : discards_of(flight).subspan((i == 0 ? 0 : 1) * page_bytes(0), page_bytes(0));
    }
    const PageNames::Record& record = queue->records(flight.index)[item.first];
    set_object(flight, i, {.pool = flight.pool, .key_space = record.key_space, .name = *extent_of(flight, item)})
        .target = pieces.subspan(first_piece, piece_count - first_piece);
  }
  if (flight.item_count == 0) {
    end_moves(flight);
    return;
  }
  submit(flight, {.step = Step::Get,
                  .operation = RemoteOperation::Get,
                  .is_path = flight.pool == 0 || flight.plan.kind == TransferKind::LoadFromBelow,
                  .object_count = flight.item_count,
                  .timeout_ns = config.load_timeout_ns});
}

void RemoteMover::Impl::end_get(Flight& flight) {
  for (std::uint32_t i = 0; i < flight.item_count; ++i) {
    const Item& item = items_of(flight)[i];
    const RemoteObject& object = flight.batch.objects[i];
    switch (object.outcome) {
      case RemoteOutcome::Ok:
        if (!verify(flight, item, object.target[0])) {
          refuse(flight, item, object);
        } else if (item.count == extent_pages(flight.pool)) {
          bad.remove(flight.pool, *extent_of(flight, item));
        }
        break;
      case RemoteOutcome::Corrupt:
        count(&RemoteMoverStats::corrupt_values);
        flight.fault = TransferFault::Checksum;
        end_pages(flight, item, PageEnd::Bad);
        refuse(flight, item, object);
        break;
      case RemoteOutcome::Absent:
        count(&RemoteMoverStats::absent_values);
        absent.add(flight.pool, *extent_of(flight, item), now() + kAbsentNs);
        end_pages(flight, item, PageEnd::Absent);
        break;
      case RemoteOutcome::NotTried:
      case RemoteOutcome::Late:
      case RemoteOutcome::Failed:
        end_pages(flight, item, PageEnd::Lost);
        break;
    }
  }
  end_moves(flight);
}

// A value that came wrong. That need not be the value's fault: a connection may have given an answer twice, or changed
// it, and whatever is wrong with what came looks alike then. Others need the value if it is right. So nobody is to find
// it for a while, and a store of its pages puts them anew; it is dropped when it comes wrong to somebody who asked for
// it after that while.
void RemoteMover::Impl::refuse(const Flight& flight, const Item& item, const RemoteObject& object) {
  const PageName& name = *extent_of(flight, item);
  const bool is_again = bad.remembers(flight.pool, name) && !bad.has(flight.pool, name, flight.start_ns);
  const bool is_for_good = is_again && config.is_read_only;
  bad.add(flight.pool, name, is_for_good ? std::numeric_limits<TimeNs>::max() : now() + kBadNs);
  if (is_again) discard(flight.pool, name, object);
}

// Whether a value is what its key says. Its pages up to the first one that is not are good.
bool RemoteMover::Impl::verify(Flight& flight, const Item& item, std::span<const std::byte> heads) {
  const FileLayout& layout = config.pools[flight.pool].layout;
  const std::span<RecordHeader> found = std::span(decoded).first(extent_pages(flight.pool));
  const auto refuse = [&](Counter counter) {
    count(counter);
    flight.fault = TransferFault::Checksum;
    return false;
  };
  end_pages(flight, item, PageEnd::Bad);
  if (!decode_extent(heads, found)) return refuse(&RemoteMoverStats::corrupt_values);
  const bool is_of_layout = is_mutated(Mutant::TrustsLayouts) || found[0].layout == layout.hash;
  if (!is_of_layout || found[0].payload_bytes != layout.page_bytes) return refuse(&RemoteMoverStats::foreign_values);
  for (std::uint32_t i = 0; i < item.count; ++i) {
    const RecordHeader& header = found[item.front + i];
    const PageNames::Record& record = queue->records(flight.index)[item.first + i];
    const bool is_it = header.name == record.name && header.parent == record.parent &&
                       header.key_space == record.key_space && header.page_index == record.page_index;
    if (!is_it && !is_mutated(Mutant::TrustsNames)) return refuse(&RemoteMoverStats::foreign_values);
  }
  for (std::uint32_t i = 0; i < item.count; ++i) {
    PageRow& page = pages_of(flight)[item.first + i];
    page.checksum = page_checksum(page.memory);
    const bool is_right = page.checksum == found[item.front + i].checksum;
    if (!is_right && !is_mutated(Mutant::TrustsChecksums)) return refuse(&RemoteMoverStats::corrupt_values);
    page.end = PageEnd::Good;
  }
  count(&RemoteMoverStats::got_values);
  count(&RemoteMoverStats::got_bytes, item.count * layout.page_bytes);
  return true;
}

// Writing

// First the store is asked which of the values it has: they need not be shipped.
void RemoteMover::Impl::ask(Flight& flight) {
  group(flight);
  for (std::uint32_t i = 0; i < flight.item_count; ++i) {
    const Item& item = items_of(flight)[i];
    const PageNames::Record& record = queue->records(flight.index)[item.first];
    end_pages(flight, item, PageEnd::Open);
    (void)set_object(flight, i, {.pool = flight.pool, .key_space = record.key_space, .name = *extent_of(flight, item)});
  }
  if (flight.item_count == 0) {
    end_moves(flight);
    return;
  }
  count(&RemoteMoverStats::asked_names, flight.item_count);
  submit(flight, {.step = Step::Ask,
                  .priority = RemotePriority::Background,
                  .object_count = flight.item_count,
                  .timeout_ns = config.store_timeout_ns});
}

// What the store could not say is not put: it would not take it, either. Nor is what was dropped since it was asked, or
// taken for there: the drop waits for this flight, and then takes it.
void RemoteMover::Impl::end_ask(Flight& flight) {
  std::uint32_t put_count = 0;
  bool goes_on = true;
  for (std::uint32_t i = 0; i < flight.item_count && goes_on; ++i) {
    const Item& item = items_of(flight)[i];
    if (queue->is_dropping(queue->records(flight.index)[item.first].key_space)) {
      skip(flight, item, PageEnd::Hidden);
      continue;
    }
    RemoteOutcome outcome = flight.batch.objects[i].outcome;
    if (outcome == RemoteOutcome::Ok && bad.remembers(flight.pool, *extent_of(flight, item))) {
      outcome = RemoteOutcome::Absent;
    }
    switch (outcome) {
      case RemoteOutcome::Ok:
        count(&RemoteMoverStats::kept_values);
        end_pages(flight, item, PageEnd::Good);
        break;
      case RemoteOutcome::Absent:
        goes_on = add_put(flight, i, put_count);  // not behind this object, which has been looked at
        put_count += goes_on ? 1 : 0;
        break;
      default:
        end_pages(flight, item, PageEnd::Lost);
        break;
    }
  }
  if (put_count == 0) {
    end_moves(flight);
    return;
  }
  submit(flight, {.step = Step::Put,
                  .operation = RemoteOperation::Put,
                  .priority = RemotePriority::Background,
                  .object_count = put_count,
                  .timeout_ns = config.store_timeout_ns});
}

// False: a page is not what the plan says. Nothing behind it is tried.
bool RemoteMover::Impl::add_put(Flight& flight, std::uint32_t item_index, std::uint32_t object) {
  const Item& item = items_of(flight)[item_index];
  const std::uint64_t length = page_bytes(flight.pool);
  const std::span<std::span<const std::byte>> pieces =
      sources_of(flight).subspan(object * (std::size_t{1} + item.count), std::size_t{1} + item.count);
  const std::span<std::byte> heads =
      headers_of(flight).subspan(object * extent_headers_bytes(item.count), extent_headers_bytes(item.count));
  for (std::uint32_t i = 0; i < item.count; ++i) {
    HostPages::Record source;
    TransferFault fault = begin_source(flight, item.first + i, source);
    const bool has_begun = fault == TransferFault::None;
    const std::uint64_t checksum = has_begun ? page_checksum(source.bytes) : 0;
    if (has_begun && source.checksum && *source.checksum != checksum && !is_mutated(Mutant::TrustsHostPages)) {
      fault = TransferFault::Checksum;
    }
    if (fault != TransferFault::None) {
      for (std::uint32_t begun = 0; begun < i + (has_begun ? 1U : 0U); ++begun) end_source(flight, item.first + begun);
      skip(flight, {.first = item.first, .count = i, .front = 0}, PageEnd::NotWritten);
      pages_of(flight)[item.first + i].end = PageEnd::Bad;
      flight.fault = fault;
      return false;
    }
    const PageNames::Record& record = queue->records(flight.index)[item.first + i];
    decoded[i] = {.name = record.name,
                  .parent = record.parent,
                  .key_space = record.key_space,
                  .layout = config.pools[flight.pool].layout.hash,
                  .page_index = record.page_index,
                  .payload_bytes = length,
                  .stored_bytes = length,
                  .checksum = checksum,
                  .stored_at_ns = config.unix_time ? config.unix_time() : 0};
    pieces[1 + i] = source.bytes;
  }
  encode_extent(std::span(decoded).first(item.count), heads);
  pieces[0] = heads;
  const PageNames::Record& record = queue->records(flight.index)[item.first];
  set_object(flight, object, {.pool = flight.pool, .key_space = record.key_space, .name = *extent_of(flight, item)})
      .source = pieces;
  tags_of(flight)[object] = item_index;
  return true;
}

// A value that was refused or came late is lost, and the tier is not: see remote_mover.h.
void RemoteMover::Impl::end_put(Flight& flight) {
  for (std::size_t i = 0; i < flight.batch.objects.size(); ++i) {
    const Item& item = items_of(flight)[tags_of(flight)[i]];
    for (std::uint32_t page = 0; page < item.count; ++page) end_source(flight, item.first + page);
    const bool is_put = flight.batch.objects[i].outcome == RemoteOutcome::Ok;
    end_pages(flight, item, is_put ? PageEnd::Good : PageEnd::Lost);
    if (!is_put) lost_put_ns = now();
    if (!is_put) continue;
    absent.remove(flight.pool, *extent_of(flight, item));
    bad.remove(flight.pool, *extent_of(flight, item));
    const std::uint64_t bytes = extent_bytes(item.count, page_bytes(flight.pool));
    flight.completion.moved_bytes += bytes;
    count(&RemoteMoverStats::put_values);
    count(&RemoteMoverStats::put_bytes, bytes);
  }
  end_moves(flight);
}

TransferFault RemoteMover::Impl::begin_source(Flight& flight, std::uint32_t page, HostPages::Record& record) {
  if (flight.plan.kind == TransferKind::StoreBelow) {
    return hosts[flight.pool]->begin_read(flight.plan.pages[page], record);
  }
  record.bytes = pages_of(flight)[page].source;
  return TransferFault::None;
}

void RemoteMover::Impl::end_source(const Flight& flight, std::uint32_t page) {
  if (flight.plan.kind == TransferKind::StoreBelow) hosts[flight.pool]->end_read(flight.plan.pages[page]);
}

void RemoteMover::Impl::end_moves(Flight& flight) {
  switch (flight.plan.kind) {
    case TransferKind::LoadFromBelow:
      end_load(flight);
      return;
    case TransferKind::StoreBelow:
      end_store(flight);
      return;
    default:
      end_direct_batch(flight);
  }
}

// Loads and stores

void RemoteMover::Impl::begin_load(Flight& flight) {
  const LowerPlan& plan = flight.plan;
  flight.page_count = 0;
  if (plan.pages.empty() || queue->is_cancelled(flight.index)) {
    flight.completion.outcome = TransferOutcome::Cancelled;
    complete(flight);
    return;
  }
  for (const PageTransfer& page : plan.pages) {
    PageRow& row = pages_of(flight)[flight.page_count];
    row = {};
    flight.completion.fault = hosts[plan.pool]->begin_write(page, row.memory);
    if (flight.completion.fault != TransferFault::None) break;
    ++flight.page_count;
  }
  get(flight);
}

// The first page that did not come ends the path.
void RemoteMover::Impl::end_load(Flight& flight) {
  const LowerPlan& plan = flight.plan;
  Completion& completion = flight.completion;
  for (std::uint32_t i = 0; i < flight.page_count; ++i) {
    const PageRow& page = pages_of(flight)[i];
    const bool is_good = completion.good_pages == i && page.end == PageEnd::Good;
    if (!is_good && completion.good_pages == i) {
      completion.fault = page.end == PageEnd::Bad ? flight.fault : TransferFault::Io;
    }
    hosts[plan.pool]->end_write(plan.pages[i], is_good ? std::optional(page.checksum) : std::nullopt);
    if (!is_good) continue;
    ++completion.good_pages;
    completion.moved_bytes += page.memory.size();
  }
  if (completion.good_pages < plan.pages.size()) set_failure(flight, completion.fault);
  complete(flight);
}

void RemoteMover::Impl::begin_store(Flight& flight) {
  if (flight.plan.pages.empty()) {
    flight.completion.outcome = TransferOutcome::Cancelled;
    complete(flight);
    return;
  }
  flight.page_count = static_cast<std::uint32_t>(flight.plan.pages.size());
  ask(flight);
}

void RemoteMover::Impl::end_store(Flight& flight) {
  Completion& completion = flight.completion;
  const std::span<const PageRow> ended = pages_of(flight).first(flight.page_count);
  const auto is_done = [](PageEnd end) { return end == PageEnd::Good || end == PageEnd::NotWritten; };
  const auto first_open = std::ranges::find_if_not(ended, is_done, &PageRow::end);
  completion.good_pages = static_cast<std::uint32_t>(first_open - ended.begin());
  if (std::ranges::find(ended, PageEnd::Lost, &PageRow::end) != ended.end()) {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = TransferFault::Io;
  } else if (first_open != ended.end() && first_open->end == PageEnd::Hidden) {
    // By a drop. A bad page behind it has its turn when they are stored again: the first open page counts as the bad
    // one.
    completion.outcome = TransferOutcome::Cancelled;
  } else if (first_open != ended.end()) {
    completion.outcome = TransferOutcome::Failed;
    completion.fault = flight.fault;
  }
  complete(flight);
}

// Direct calls: pages that go with one path, straight from or to memory of the caller's, as many at a time as a plan
// has. The history ends with its first page that is not read or written; pages of other groups are of use one by one.

void RemoteMover::Impl::begin_direct(Flight& flight) {
  std::ranges::fill(flight.plan.anchored, 0);
  flight.shared = queue->records(flight.index)[0];
  flight.next_columns = 0;
  flight.next_column = 0;
  flight.offset = 0;
  const bool is_hidden = flight.plan.kind == TransferKind::GetFromBelow && queue->is_dropping(flight.shared.key_space);
  if (is_hidden) {
    complete(flight);
  } else {
    next_direct(flight);
  }
}

void RemoteMover::Impl::next_direct(Flight& flight) {
  if (!has_direct_pages(flight)) {
    if (flight.completion.fault != TransferFault::None) flight.completion.outcome = TransferOutcome::Failed;
    complete(flight);
  } else if (flight.plan.kind == TransferKind::GetFromBelow) {
    get(flight);
  } else {
    ask(flight);
  }
}

// The next pages of a direct call, with names; of an extent all or none.
bool RemoteMover::Impl::has_direct_pages(Flight& flight) {
  const LowerPlan& plan = flight.plan;
  const std::span<const PageName> path = queue->path(flight.index);
  for (; flight.next_columns < plan.columns.size(); ++flight.next_columns, flight.next_column = 0) {
    const PoolColumns& columns = plan.columns[flight.next_columns];
    const std::uint64_t length = page_bytes(columns.pool);
    const std::uint32_t count_max =
        config.transfer_pages_max - (config.transfer_pages_max % extent_pages(columns.pool));
    flight.pool = columns.pool;
    flight.page_count = 0;
    for (; flight.next_column < columns.count() && flight.page_count < count_max; ++flight.next_column) {
      const std::uint32_t column = columns.at(flight.next_column);
      if (columns.pool > 0 && column >= flight.completion.good_pages) continue;
      const std::uint64_t begin = flight.offset + (flight.next_column * length);
      PageRow& row = pages_of(flight)[flight.page_count];
      row = {};
      if (plan.kind == TransferKind::GetFromBelow) row.memory = plan.target.subspan(begin, length);
      if (plan.kind == TransferKind::PutBelow) row.source = plan.source.subspan(begin, length);
      queue->records(flight.index)[flight.page_count++] = {
          .name = path[column],
          .parent = column == 0 ? flight.shared.parent : path[column - 1],
          .key_space = flight.shared.key_space,
          .page_index = column};
    }
    if (flight.page_count > 0) return true;
    flight.offset += columns.count() * length;
  }
  return false;
}

void RemoteMover::Impl::end_direct_batch(Flight& flight) {
  const LowerPlan& plan = flight.plan;
  Completion& completion = flight.completion;
  for (std::uint32_t i = 0; i < flight.page_count; ++i) {
    const PageRow& page = pages_of(flight)[i];
    if (page.end == PageEnd::Bad) completion.fault = TransferFault::Checksum;
    if (page.end == PageEnd::Lost || page.end == PageEnd::Open) completion.fault = TransferFault::Io;
    if (page.end != PageEnd::Good) {
      if (flight.pool > 0) continue;
      flight.next_column = plan.columns[flight.next_columns].count();
      break;
    }
    const std::uint32_t column = queue->records(flight.index)[i].page_index;
    completion.good_pages += flight.pool == 0 ? 1 : 0;
    if (flight.pool > 0) plan.anchored[column] |= std::uint64_t{1} << (flight.pool - 1);
    completion.moved_bytes += page.memory.size();  // a put has counted its values
  }
  next_direct(flight);
}

}  // namespace quire
