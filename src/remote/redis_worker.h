// SPDX-License-Identifier: Apache-2.0
//
// RedisWorker: the thread of a store. It takes batches out of the mailbox, sends each object to the node that has it,
// and answers each batch when all its objects have ended or its time is over, whichever is first.
//
// A request is what becomes of an object:
//
//   queued on a lane ──► in flight ──► ended          a redirection puts it on another node's lane
//        └───────────────────┴──► let go: its batch was answered without it. In flight it stays in its place until its
//                                 answer comes, so that the answers behind it are not taken for each other's.
//
// Of a batch that was answered, no pointer is looked at any more: a request that was let go has no batch.
//
// worker-only, but for the constructor and the destructor
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/index_heap.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "quire/redis_store.h"
#include "quire/remote_store.h"
#include "remote/cluster_slots.h"
#include "remote/name_resolver.h"
#include "remote/redis_connection.h"
#include "remote/redis_login.h"
#include "remote/redis_mailbox.h"
#include "remote/redis_node.h"
#include "remote/redis_refusal.h"
#include "remote/redis_session.h"

namespace quire {

class RedisWorker final : private RedisLane::Owner {
 public:
  /// Starts the thread. `topology`: what opening found out, or why it found out nothing.
  [[nodiscard]] static Result<std::unique_ptr<RedisWorker>> start(const RedisConfig& config, const RedisLogin& login,
                                                                  RedisMailbox& mailbox,
                                                                  const Result<RedisTopology>& topology);
  /// Ends what is in flight.
  ~RedisWorker();
  RedisWorker(const RedisWorker&) = delete;
  RedisWorker& operator=(const RedisWorker&) = delete;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::uint32_t kNodesMax = kClusterNodesMax + 64;  // seeds too
  static constexpr std::uint32_t kLanesMax = kNodesMax * kLanesOfNode;
  static constexpr std::uint32_t kWaitingSweeps = 0;  // a list
  static constexpr std::uint32_t kSweepsMax = 4;      // at the same time; other drops wait for their turn

  // From Ping on, they are the worker's own.
  enum class Kind : std::uint8_t { Find, Get, Put, Drop, DropBelow, Ping, Map, Sweep, SweepMap };
  enum class State : std::uint8_t { Free, Ended, Queued, InFlight, Sweeping };
  struct Request {
    State state;
    Kind kind;
    bool is_asking;              ///< ASKING goes before it
    std::uint8_t redirections;   ///< so far
    std::uint32_t batch;         ///< kNone: let go, or the worker's own
    std::uint32_t object_index;  ///< of Sweep and SweepMap: which sweep
    std::uint32_t next;          ///< of the batch, or free
    std::uint32_t lane_id;
    std::uint32_t answers_left;  ///< in flight
    std::uint64_t bytes;         ///< of the value
  };
  struct Batch {
    RemoteBatch batch;
    TimeNs submitted_at_ns = 0;
    TimeNs deadline_ns = 0;
    std::uint32_t first_request = kNone;
    std::uint32_t request_count = 0;      ///< that were made for it
    std::uint32_t open_count = 0;         ///< of these, that have not ended
    std::uint32_t path_end = UINT32_MAX;  ///< of a path: the first object that is not Ok, as far as is known
    RemoteAnswer answer;
    bool is_open = false;
    bool is_held = false;  ///< it is being begun or ended, and not to be ended by one of its requests
  };
  /// A DropBelow under way, in passes over all nodes. Each node is swept by a request of its own, all of them at the
  /// same time; when all have ended, each is asked which slots it has.
  struct Sweep {
    std::uint32_t request = kNone;  ///< the DropBelow; kNone: there is none, or it was let go
    std::string prefix;
    std::uint32_t open_nodes = 0;  ///< whose requests have not ended; while there are any, the place is taken
    std::uint32_t pass_count = 0;
    std::uint32_t quiet_passes = 0;    ///< in a row, in which nothing has moved
    std::uint64_t topology_epoch = 0;  ///< when the pass began
    bool is_asked_maps = false;        ///< of this pass
    bool has_moved = false;            ///< in this pass
    bool is_asking = false;            ///< ASKING goes before each key, as some were at nodes that get their slot
    bool has_failed = false;
  };
  /// Of one node, through which it goes by a cursor.
  struct NodeSweep {
    std::uint64_t cursor = 0;
    bool is_done = false;           ///< the cursor has come round
    std::vector<std::string> keys;  ///< to be dropped, until that was answered
  };

  RedisWorker(const RedisConfig& config, const RedisLogin& login, RedisMailbox& mailbox);
  [[nodiscard]] Status prepare(const Result<RedisTopology>& topology);
  void run();

  // ── redis_worker.cc: batches and time
  void take_mail();
  void begin_batch(const RedisMailbox::Taken& taken);
  void end_batch(std::uint32_t batch_index);
  void end_batch_late(std::uint32_t batch_index, bool is_cancelled);
  /// The node owes an answer to a batch that was submitted then, and its time is over.
  void note_late(std::uint32_t node_index, TimeNs submitted_at_ns);
  void expire_batches();
  void tick();
  void want_tick();
  void set_timer();
  void publish_status();

  // ── redis_worker_requests.cc: from objects to nodes and back
  [[nodiscard]] std::uint32_t make_request(Kind kind);
  void free_request(std::uint32_t request);
  [[nodiscard]] std::uint32_t route(std::string_view key) const;
  /// Queues it at a node, or ends it as Failed.
  void send_to(std::uint32_t request, std::uint32_t node_index);
  void queue(std::uint32_t request, std::uint32_t lane_id);
  void unqueue(std::uint32_t request);
  [[nodiscard]] bool can_fill(RedisNode::Lane& lane) const;
  void fill(RedisNode::Lane& lane);
  void append_request(std::uint32_t request, RedisNode::Lane& lane);
  void end_request(std::uint32_t request, RemoteOutcome outcome);
  /// Where it was cannot do it.
  void fail_request(std::uint32_t request, RemoteOutcome outcome);
  void let_go(std::uint32_t request);
  void close_path(Batch& batch, std::uint32_t object_index);
  void leave_flight(std::uint32_t request);
  /// False: that is no answer to what was asked.
  [[nodiscard]] bool finish_answer(std::uint32_t request, const RespValue& answer);
  void refused(std::uint32_t request, const RespValue& answer);
  /// The node takes no values at present, so none is sent for a while.
  void put_refused(std::uint32_t node_index);
  void redirect(std::uint32_t request, const RespValue& answer);
  [[nodiscard]] std::uint32_t node_of_redirection(std::uint32_t from, const Redirection& redirection);
  [[nodiscard]] static bool is_of_sweep(const Request& request) { return request.kind >= Kind::Sweep; }
  /// Nobody waits for its answer any more, or nobody but the worker.
  [[nodiscard]] bool is_let_go(const Request& request) const {
    return is_of_sweep(request) ? sweeps_[request.object_index].request == kNone : request.batch == kNone;
  }
  [[nodiscard]] RemoteObject& object_of(const Request& request) {
    return batches_[request.batch].batch.objects[request.object_index];
  }
  void note_first_byte(const Request& request);

  // ── redis_worker_drops.cc: DropBelow
  void start_sweeps();
  void begin_pass(std::uint32_t sweep_index);
  void end_pass(std::uint32_t sweep_index);
  void ask_nodes(std::uint32_t sweep_index, Kind kind);
  void append_sweep(std::uint32_t request, RedisNode::Lane& lane);
  /// One of the answers to what append_sweep() sends, and the last of them. False: that is no answer.
  void unlink_answered(std::uint32_t request, const RespValue& answer);
  [[nodiscard]] bool sweep_answered(std::uint32_t request, const RespValue& answer);
  void sweep_refused(std::uint32_t request, const RespValue& answer);
  [[nodiscard]] bool page_answered(std::uint32_t request, const RespValue& answer);
  /// To CLUSTER SLOTS, which the answer to CLUSTER NODES follows.
  void sweep_slots_answered(std::uint32_t request, const RespValue& answer);
  void sweep_nodes_answered(std::uint32_t request, const RespValue& answer);
  void learn_bare_node(Sweep& sweep, const RedisEndpoint& endpoint, const std::string& id);
  void end_node_sweep(std::uint32_t request);
  void node_swept(std::uint32_t sweep_index);
  void let_go_of_sweep(std::uint32_t request);

  // RedisLane::Owner
  [[nodiscard]] bool expects_answer(const RedisLane& lane) override;
  [[nodiscard]] std::optional<RedisLane::Target> target(const RedisLane& lane, std::uint64_t bytes) override;
  [[nodiscard]] bool expects_value(const RedisLane& lane) override;
  void value_ended(RedisLane& lane, bool is_in_place) override;
  [[nodiscard]] Status answered(RedisLane& lane, const RespValue& answer) override;
  [[nodiscard]] RedisLane::Source source(const RedisLane& lane) override;

  // ── redis_worker_nodes.cc: which nodes there are, and how they are
  [[nodiscard]] std::uint32_t find_or_add_node(const RedisEndpoint& endpoint);
  void apply_map(const ClusterMap& map);
  /// Where a slot is now, on the word of a server.
  void learn_slot(std::uint16_t slot, std::uint32_t node_index);
  /// The node knows best which slots it has, and what the others have it may know late.
  void learn_own_slots(std::uint32_t node_index, const ClusterMap& map);
  void map_answered(std::uint32_t node_index, const RespValue& answer);
  /// At the next tick at which it may be asked for.
  void want_map();
  void ask_for_map(TimeNs now);
  void ask_for_map_at(std::uint32_t node_index);
  void ping_answered(std::uint32_t node_index, const RespValue& answer);
  void take_addresses();
  /// Takes the next of the node's addresses.
  void connect(std::uint32_t lane_id);
  void note_connected(RedisNode::Lane& lane);
  void note_heard(RedisNode::Lane& lane, std::uint64_t bytes);
  void go_on(std::uint32_t lane_id);
  [[nodiscard]] bool goes_on(RedisNode::Lane& lane) const;
  void watch(RedisNode::Lane& lane);
  void set_due(RedisNode::Lane& lane);
  /// The connection is lost, or none could be made; where no other address is left to be tried, that says something
  /// about the node.
  void fail_lane(std::uint32_t lane_id, const Error& error);
  /// The connection is given up, for a reason of our own: what is in flight is sent again by the next.
  void drop_lane(std::uint32_t lane_id);
  void end_flight(std::uint32_t lane_id, RemoteOutcome first_outcome);
  void close_lane(RedisNode::Lane& lane);
  void close_connection(RedisNode::Lane& lane);
  void node_failed(std::uint32_t node_index, const std::string& why);
  void shut_nodes();
  /// Another node answers at the node's address. False: that cannot be helped, or was tried just now.
  [[nodiscard]] bool try_leave_address(std::uint32_t node_index);
  void leave_addresses();
  void tell_error(std::uint32_t node_index, const std::string& why);
  void queue_turn(std::uint32_t lane_id);
  void take_turns();
  [[nodiscard]] bool is_idle(const RedisNode& node) const;
  void vacate_nodes();

  // The lists: of drops that wait for their turn, then two of each lane.
  [[nodiscard]] static std::uint32_t queue_of(std::uint32_t lane_id) { return (lane_id * 2) + 1; }
  [[nodiscard]] static std::uint32_t flight_of(std::uint32_t lane_id) { return (lane_id * 2) + 2; }
  [[nodiscard]] RedisNode& node_of(std::uint32_t lane_id) { return *nodes_[lane_id / kLanesOfNode]; }
  [[nodiscard]] RedisNode::Lane& lane_of(std::uint32_t lane_id) {
    return node_of(lane_id).lanes[lane_id % kLanesOfNode];
  }
  [[nodiscard]] bool is_empty(std::uint32_t list) const { return lists_.front(list) == IndexLists::kNone; }

  const RedisConfig config_;
  const RedisLogin& login_;
  RedisMailbox& mailbox_;
  Descriptor epoll_;
  Descriptor timer_;
  TimeNs now_ = 0;
  TimeNs timer_at_ns_ = 0;  // 0: not set
  TimeNs tick_at_ns_ = 0;

  LazyArray<Request> requests_;
  std::uint32_t free_requests_ = kNone;
  std::uint32_t used_requests_ = 0;  // from here on, none was ever used
  std::uint32_t given_back_ = 0;     // objects that the mailbox was not told of yet
  IndexLists lists_;                 // requests: of each lane those that are queued and those in flight
  std::array<Sweep, kSweepsMax> sweeps_;
  bool has_bare_nodes_ = false;                               // until no sweep is under way
  std::unordered_map<std::uint32_t, NodeSweep> node_sweeps_;  // by their requests

  std::vector<Batch> batches_;   // by their places in the mailbox
  IndexHeap<TimeNs> deadlines_;  // of batches

  // Nodes are never removed while the worker lives: one that is not used any more makes room for another. A lane's id
  // is that of its node * 3 + its kind.
  std::vector<std::unique_ptr<RedisNode>> nodes_;
  bool has_topology_ = false;
  bool is_cluster_ = false;
  std::array<std::uint16_t, kClusterSlots> slots_{};
  std::uint64_t topology_epoch_ = 0;  // grows whenever slots go elsewhere
  bool wants_map_ = false;
  TimeNs map_at_ns_ = 0;  // not before
  std::uint32_t map_node_ = 0;
  bool has_shut_nodes_ = false;
  bool has_nodes_elsewhere_ = false;
  std::vector<std::uint32_t> turns_;  // lanes
  std::vector<std::uint32_t> turns_taken_;
  std::string last_error_;
  bool is_status_old_ = true;

  std::vector<RedisMailbox::Taken> mail_;
  std::vector<std::uint64_t> cancelled_;
  NameResolver resolver_;
  std::thread thread_;
};

}  // namespace quire
