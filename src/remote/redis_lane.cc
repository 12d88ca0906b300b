// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_lane.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "remote/redis_refusal.h"

namespace quire {
namespace {

// A call moves no more, each way, before the owner looks at the clock again: that takes less than a millisecond. A
// plain socket is offered more than TLS, because the system copies a large value in one go for a fifth less CPU.
constexpr std::uint64_t kReadBytesMax = std::uint64_t{512} << 10U;
constexpr std::uint64_t kWriteBytesMax = std::uint64_t{4} << 20U;
constexpr std::uint64_t kTlsWriteBytesMax = std::uint64_t{512} << 10U;
constexpr std::size_t kPiecesMax = 64;
// What is read behind a value in the same call: its end and the head of the next, of which little has to be copied.
constexpr std::size_t kBehindValueBytes = 512;
// Of a value that is on its way so much comes at one wake-up, if so much of it is left: a server of the same machine
// sends it in pieces of 64 KiB, and a wake-up for each costs more than reading it.
constexpr std::uint64_t kLowWaterMax = std::uint64_t{128} << 10U;
constexpr std::size_t kDropBytes = std::size_t{64} << 10U;

tl::unexpected<Error> nonsense() {
  return fail(ErrorCode::Corrupt, "what came is no answer in the protocol of Redis");
}

// The pieces without their first `skip` bytes, up to `limit` bytes; returns how many bytes they have.
template <typename Byte>
std::uint64_t list_pieces(std::span<const std::span<Byte>> source, std::uint64_t skip, std::uint64_t limit,
                          std::span<iovec> out, std::size_t& count) {
  std::uint64_t bytes = 0;
  for (const std::span<Byte>& piece : source) {
    if (count == out.size() || bytes == limit) break;
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    const auto rest = piece.subspan(skip);
    skip = 0;
    const std::uint64_t taken = std::min<std::uint64_t>(rest.size(), limit - bytes);
    out[count++] = {const_cast<void*>(static_cast<const void*>(rest.data())), taken};
    bytes += taken;
  }
  return bytes;
}

}  // namespace

Status RedisLane::begin(const SocketAddress& address, const RedisEndpoint& endpoint, const RedisLogin& login) {
  QUIRE_CHECK(state_ == State::Closed, "the lane has a connection");
  QUIRE_TRY_ASSIGN(connection_, RedisConnection::begin(address, login.options_for(endpoint)));
  login_ = &login;
  state_ = State::Connecting;
  waits_to_write_ = true;
  if (input_.empty()) input_.resize(kInputBytes);
  return {};
}

void RedisLane::close() {
  if (connection_ != nullptr) connection_->shut_down();
  connection_.reset();
  state_ = State::Closed;
  waits_to_write_ = has_more_to_read_ = has_more_to_write_ = false;
  heard_bytes_ = sent_value_bytes_ = 0;
  text_.clear();
  text_offset_ = 0;
  is_sending_value_ = is_reading_value_ = false;
  input_begin_ = input_end_ = 0;
  collector_.reset();
}

std::uint64_t RedisLane::arrived_bytes() const {
  return heard_bytes_ + (connection_ == nullptr ? 0 : connection_->unread_bytes());
}

Status RedisLane::go_on(Owner& owner, bool may_read) {
  may_read = may_read || has_more_to_read_;
  has_more_to_read_ = has_more_to_write_ = false;
  if (state_ == State::Connecting) {
    const IoCount count = connection_->connect();
    if (count.state == IoCount::State::Closed) return fail(ErrorCode::Unavailable, count.why);
    waits_to_write_ = count.state == IoCount::State::WaitsToWrite;
    if (count.state != IoCount::State::Moved) return {};
    state_ = login_->append_login(text_) ? State::LoggingIn : State::Ready;
  }
  if (Status written = write_all(owner); !written.has_value()) {
    // A server that lets nobody in, or takes no more of a value, says so before it closes the connection.
    Status read = read_all(owner);
    return read.has_value() ? written : read;
  }
  // What TLS waits for may be of either direction.
  if (!may_read && login_->tls == nullptr) return {};
  return read_all(owner);
}

void RedisLane::send_value(std::size_t begin, std::uint64_t bytes, std::string_view tail) {
  is_sending_value_ = true;
  value_text_begin_ = begin;
  value_bytes_ = bytes;
  value_sent_ = 0;
  tail_ = tail;
  tail_sent_ = 0;
}

bool RedisLane::try_take_back_value() {
  // TLS may have taken bytes that it has not told of.
  if (text_offset_ > value_text_begin_ || value_sent_ > 0 || login_->tls != nullptr) return false;
  text_.resize(value_text_begin_);
  is_sending_value_ = false;
  return true;
}

Status RedisLane::write_all(Owner& owner) {
  waits_to_write_ = false;
  const std::uint64_t bytes_max = login_->tls == nullptr ? kWriteBytesMax : kTlsWriteBytesMax;
  for (std::uint64_t written = 0; text_offset_ < text_.size() || is_sending_value_;) {
    if (written >= bytes_max) {
      has_more_to_write_ = true;
      return {};
    }
    std::array<iovec, kPiecesMax> pieces;
    std::size_t count = 0;
    if (text_offset_ < text_.size()) pieces[count++] = {text_.data() + text_offset_, text_.size() - text_offset_};
    if (is_sending_value_) {
      // TLS may not be offered less than the last time, so what was written in this call does not count.
      const std::uint64_t listed =
          list_pieces(owner.source(*this), value_sent_, bytes_max, std::span(pieces).first(kPiecesMax - 1), count);
      if (value_sent_ + listed == value_bytes_)
        pieces[count++] = {tail_.data() + tail_sent_, tail_.size() - tail_sent_};
    }
    std::uint64_t offered = 0;
    for (const iovec& piece : std::span(pieces).first(count)) offered += piece.iov_len;
    IoCount moved = connection_->write(std::span(pieces).first(count));
    if (moved.state == IoCount::State::Closed) return fail(ErrorCode::Unavailable, std::move(moved.why));
    if (moved.state != IoCount::State::Moved) {
      waits_to_write_ = moved.state == IoCount::State::WaitsToWrite;
      return {};
    }
    written += moved.bytes;
    const std::size_t of_text = std::min<std::size_t>(moved.bytes, text_.size() - text_offset_);
    text_offset_ += of_text;
    if (!is_sending_value_ && (text_offset_ == text_.size() || text_offset_ > kTextBytesMax)) {
      text_.erase(0, text_offset_);
      text_offset_ = 0;
    }
    // The socket is full. TLS may say so later, and has to be asked for what it waits for.
    const bool is_full = moved.bytes < offered && login_->tls == nullptr;
    if (is_full) waits_to_write_ = true;
    if (!is_sending_value_) {
      if (is_full) return {};
      continue;
    }
    const std::uint64_t of_value = std::min<std::uint64_t>(moved.bytes - of_text, value_bytes_ - value_sent_);
    value_sent_ += of_value;
    sent_value_bytes_ += of_value;
    tail_sent_ += moved.bytes - of_text - of_value;
    if (tail_sent_ == tail_.size() && value_sent_ == value_bytes_) {
      is_sending_value_ = false;
      text_.clear();
      text_offset_ = 0;
      return {};  // there is room for the next
    }
    if (is_full) return {};
  }
  return {};
}

// The rest of the value that is being read, or memory in which to drop some of it.
std::size_t RedisLane::list_target(Owner& owner, std::uint64_t limit, std::span<iovec> pieces, std::uint64_t& bytes) {
  std::size_t count = 0;
  const std::uint64_t left = answer_bytes_ - answer_read_;
  if (is_in_place_) {
    const std::optional<Target> target = owner.target(*this, answer_bytes_);
    if (target) bytes = list_pieces(*target, answer_read_, std::min(left, limit), pieces, count);
    is_in_place_ = bytes > 0;
  }
  if (!is_in_place_) {
    if (dropped_.empty()) dropped_.resize(kDropBytes);
    bytes = std::min<std::uint64_t>(left, dropped_.size());
    pieces[count++] = {dropped_.data(), bytes};
  }
  return count;
}

Status RedisLane::read_all(Owner& owner) {
  QUIRE_TRY(read_some(owner));
  const std::uint64_t left = is_reading_value_ ? answer_bytes_ - answer_read_ : 0;
  connection_->set_low_water(std::clamp<std::uint64_t>(left, 1, kLowWaterMax));
  return {};
}

Status RedisLane::read_some(Owner& owner) {
  for (std::uint64_t read = 0; read < kReadBytesMax;) {
    std::array<iovec, kPiecesMax> pieces;
    std::size_t count = 0;
    std::uint64_t of_value = 0;
    std::size_t room = 0;
    if (is_reading_value_ && answer_read_ < answer_bytes_) {
      // All input was part of the value.
      input_begin_ = input_end_ = 0;
      count = list_target(owner, kReadBytesMax - read, std::span(pieces).first(kPiecesMax - 1), of_value);
      if (answer_read_ + of_value == answer_bytes_) room = kBehindValueBytes;
    } else {
      std::copy(input_.begin() + static_cast<std::ptrdiff_t>(input_begin_),
                input_.begin() + static_cast<std::ptrdiff_t>(input_end_), input_.begin());
      input_end_ -= input_begin_;
      input_begin_ = 0;
      // Where values come, little of them is to be read that has to be copied from here.
      room = input_.size() - input_end_;
      if (owner.expects_answer(*this) && owner.expects_value(*this)) room = std::min(room, kBehindValueBytes);
    }
    if (room > 0) pieces[count++] = {input_.data() + input_end_, room};
    IoCount moved = connection_->read(std::span(pieces).first(count));
    if (moved.state == IoCount::State::Closed) return fail(ErrorCode::Unavailable, std::move(moved.why));
    if (moved.state == IoCount::State::WaitsToWrite) waits_to_write_ = true;
    if (moved.state != IoCount::State::Moved) return {};
    read += moved.bytes;
    heard_bytes_ += moved.bytes;
    const std::uint64_t value_moved = std::min<std::uint64_t>(moved.bytes, of_value);
    answer_read_ += value_moved;
    input_end_ += moved.bytes - value_moved;
    QUIRE_TRY(digest(owner));
    // A socket that had less than there was room for has no more now.
    if (moved.bytes < of_value + room && !connection_->has_pending()) return {};
  }
  has_more_to_read_ = true;
  return {};
}

void RedisLane::copy_to_target(Owner& owner) {
  while (input_begin_ < input_end_ && answer_read_ < answer_bytes_) {
    std::array<iovec, kPiecesMax> pieces;
    std::uint64_t bytes = 0;
    const std::size_t count = list_target(owner, kReadBytesMax, pieces, bytes);
    for (const iovec& piece : std::span(pieces).first(count)) {
      const std::size_t taken = std::min<std::size_t>(piece.iov_len, input_end_ - input_begin_);
      if (is_in_place_) std::memcpy(piece.iov_base, input_.data() + input_begin_, taken);
      input_begin_ += taken;
      answer_read_ += taken;
    }
  }
}

Status RedisLane::login_answered(const RespValue& answer) {
  if (answer.kind == RespKind::Error) {
    switch (refusal_of(answer.text)) {
      case RedisRefusal::TooManyClients:
      case RedisRefusal::ProtectedMode:
        return fail(ErrorCode::Unavailable, told_of(answer.text));
      default:
        // What the server says may repeat what was sent to it.
        return fail(ErrorCode::Unavailable, "the server refuses the user or the password");
    }
  }
  state_ = State::Ready;
  return {};
}

// A server that takes nobody says why before it hears anything, and closes the connection. Other errors are worth
// telling too: one of them may be why the connection is about to be closed.
Status RedisLane::unasked(std::string_view input) const {
  RespHead head;
  if (input.front() == '-') {
    const RespTaken taken = take_resp_head(input, head);
    if (taken == RespTaken::NeedsMore) return {};
    if (taken == RespTaken::Taken) {
      const RedisRefusal refusal = refusal_of(head.text);
      if (refusal == RedisRefusal::TooManyClients || refusal == RedisRefusal::ProtectedMode) {
        return fail(ErrorCode::Unavailable, told_of(head.text));
      }
      return fail(ErrorCode::Corrupt, "the server said without being asked: " + printable(head.text));
    }
  }
  return fail(ErrorCode::Corrupt, "the server said something that nobody asked for");
}

Status RedisLane::digest(Owner& owner) {
  while (input_begin_ < input_end_) {
    std::string_view input(input_.data() + input_begin_, input_end_ - input_begin_);
    if (is_reading_value_) {
      copy_to_target(owner);
      input = {input_.data() + input_begin_, input_end_ - input_begin_};
      if (answer_read_ < answer_bytes_ || input.size() < 2) return {};
      if (!input.starts_with("\r\n")) return nonsense();
      input_begin_ += 2;
      is_reading_value_ = false;
      owner.value_ended(*this, is_in_place_);
      continue;
    }
    if (state_ != State::LoggingIn && !collector_.has_begun() && !owner.expects_answer(*this)) {
      return unasked(input);
    }
    if (state_ == State::Ready && !collector_.has_begun() && owner.expects_value(*this)) {
      std::string_view rest = input;
      RespHead head;
      const RespTaken taken = take_resp_head(rest, head);
      if (taken == RespTaken::NeedsMore) return {};
      if (taken == RespTaken::Nonsense) return nonsense();
      if (head.kind == RespKind::Bulk && !head.is_error_text) {
        input_begin_ = input_end_ - rest.size();
        is_reading_value_ = true;
        answer_bytes_ = static_cast<std::uint64_t>(head.number);
        answer_read_ = 0;
        is_in_place_ = owner.target(*this, answer_bytes_).has_value();
        continue;
      }
    }
    const RespTaken taken = collector_.take(input);
    input_begin_ = input_end_ - input.size();
    if (taken == RespTaken::NeedsMore) return {};
    if (taken == RespTaken::Nonsense) return nonsense();
    const RespValue& answer = collector_.value();
    if (answer.kind == RespKind::Push || answer.kind == RespKind::Attribute) continue;
    QUIRE_TRY(state_ == State::LoggingIn ? login_answered(answer) : owner.answered(*this, answer));
  }
  return {};
}

}  // namespace quire
