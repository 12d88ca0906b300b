// SPDX-License-Identifier: Apache-2.0
//
// RedisLane: one connection to a node, with the bytes that are on their way. Requests go out in order and answers come
// back in that order; what they are about is the owner's to know. Values go straight between the socket and the
// caller's memory: the lane asks for that memory at each call and keeps nothing of it in between, so that an owner who
// has nothing to offer any more gets the rest of a value dropped.
//
//   Closed ── begin() ──► Connecting ──► LoggingIn ──► Ready          and from each of them back to Closed by close()
//
// single-threaded
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "remote/redis_connection.h"
#include "remote/redis_login.h"
#include "remote/resp.h"

namespace quire {

class RedisLane {
 public:
  using Target = std::span<const std::span<std::byte>>;
  using Source = std::span<const std::span<const std::byte>>;

  class Owner {
   public:
    /// Whether an answer is expected at all.
    [[nodiscard]] virtual bool expects_answer(const RedisLane& lane) = 0;
    /// Of the next answer: the pieces for its value, which is one of `bytes`; nothing when nobody wants it or it does
    /// not fit.
    [[nodiscard]] virtual std::optional<Target> target(const RedisLane& lane, std::uint64_t bytes) = 0;
    /// The next answer is the value of a key.
    [[nodiscard]] virtual bool expects_value(const RedisLane& lane) = 0;
    /// The value of the next answer has ended. `is_in_place`: all of it is in its target.
    virtual void value_ended(RedisLane& lane, bool is_in_place) = 0;
    /// The next answer is complete, and no value in a target. An error: it makes no sense, so neither will what
    /// follows.
    [[nodiscard]] virtual Status answered(RedisLane& lane, const RespValue& answer) = 0;
    /// The pieces of the value that is being sent.
    [[nodiscard]] virtual Source source(const RedisLane& lane) = 0;

   protected:
    ~Owner() = default;
  };

  enum class State : std::uint8_t { Closed, Connecting, LoggingIn, Ready };

  explicit RedisLane(std::uint32_t id) : id_(id) {}

  /// Of Closed.
  [[nodiscard]] Status begin(const SocketAddress& address, const RedisEndpoint& endpoint, const RedisLogin& login);
  void close();
  /// Writes, reads, if there may be something, and goes on connecting as far as it can without waiting. It reads up to
  /// half a megabyte and writes up to four, half a megabyte with TLS.
  /// An error: the connection is of no use any more. ErrorCode::Corrupt: what came was no answer.
  [[nodiscard]] Status go_on(Owner& owner, bool may_read);

  // ── sending, in Ready
  /// A value that is being sent comes first.
  [[nodiscard]] bool has_room() const { return !is_sending_value_ && text_.size() - text_offset_ < kTextBytesMax; }
  /// Where to append requests.
  [[nodiscard]] std::string& text() { return text_; }
  /// The text from `begin` on belongs to a value that follows, which `tail` ends.
  void send_value(std::size_t begin, std::uint64_t bytes, std::string_view tail);
  [[nodiscard]] bool is_sending_value() const { return is_sending_value_; }
  /// The value is not to be sent after all. False: part of the request has been sent, so it cannot be taken back.
  [[nodiscard]] bool try_take_back_value();

  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] int descriptor() const { return connection_->descriptor(); }
  /// The socket has to be writable for it to go on.
  [[nodiscard]] bool waits_to_write() const { return waits_to_write_; }
  /// The limit was reached: there may be more to do, and the socket need not tell of it.
  [[nodiscard]] bool has_more() const { return has_more_to_read_ || has_more_to_write_; }
  /// Bytes that have come since it was begun.
  [[nodiscard]] std::uint64_t heard_bytes() const { return heard_bytes_; }
  /// The same with those that have not been read yet, of which the socket may not have told.
  [[nodiscard]] std::uint64_t arrived_bytes() const;
  /// Those that have come and those of values that went, by which to see that something goes on. To a node that is
  /// stopped some of a value can be sent too, but no more than the system keeps for it. What asks for something is not
  /// counted: of that, the system keeps very much.
  [[nodiscard]] std::uint64_t moved_bytes() const { return heard_bytes_ + sent_value_bytes_; }

 private:
  static constexpr std::size_t kTextBytesMax = std::size_t{64} << 10U;
  static constexpr std::size_t kInputBytes = std::size_t{16} << 10U;

  [[nodiscard]] Status write_all(Owner& owner);
  [[nodiscard]] Status read_all(Owner& owner);
  [[nodiscard]] Status read_some(Owner& owner);
  [[nodiscard]] std::size_t list_target(Owner& owner, std::uint64_t limit, std::span<iovec> pieces,
                                        std::uint64_t& bytes);
  [[nodiscard]] Status digest(Owner& owner);
  [[nodiscard]] Status unasked(std::string_view input) const;
  void copy_to_target(Owner& owner);
  [[nodiscard]] Status login_answered(const RespValue& answer);

  const std::uint32_t id_;
  State state_ = State::Closed;
  std::unique_ptr<RedisConnection> connection_;
  const RedisLogin* login_ = nullptr;
  bool waits_to_write_ = false;
  bool has_more_to_read_ = false;
  bool has_more_to_write_ = false;
  std::uint64_t heard_bytes_ = 0;
  std::uint64_t sent_value_bytes_ = 0;

  // Out: text_ from text_offset_ on, then the value from value_sent_ on, then tail_ from tail_sent_ on.
  std::string text_;
  std::size_t text_offset_ = 0;
  bool is_sending_value_ = false;
  std::size_t value_text_begin_ = 0;
  std::uint64_t value_bytes_ = 0;
  std::uint64_t value_sent_ = 0;
  std::string tail_;
  std::size_t tail_sent_ = 0;

  // In: what was read and is no part of a target yet.
  std::vector<char> input_;
  std::size_t input_begin_ = 0;
  std::size_t input_end_ = 0;
  std::vector<char> dropped_;  // where values go that nobody wants
  RespCollector collector_;
  // A value that is being read.
  bool is_reading_value_ = false;
  bool is_in_place_ = false;  // so far
  std::uint64_t answer_bytes_ = 0;
  std::uint64_t answer_read_ = 0;
};

}  // namespace quire
