// SPDX-License-Identifier: Apache-2.0
//
// What happens in the simulation, by name and in words: so that a test can tell that everything is drawn.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire::testing {

#define QUIRE_SIM_EVENTS(EVENT)                                                       \
  EVENT(Begun, "begin")                                                               \
  EVENT(BeginRefused, "begin refused")                                                \
  EVENT(Admitted, "admit")                                                            \
  EVENT(AdmittedLoading, "admit that loads")                                          \
  EVENT(AdmitShort, "admit without pages")                                            \
  EVENT(Resumed, "resume")                                                            \
  EVENT(Planned, "plan")                                                              \
  EVENT(PlannedAhead, "plan ahead")                                                   \
  EVENT(PlanShort, "plan without pages")                                              \
  EVENT(PlanTooSoon, "plan of a loading one")                                         \
  EVENT(CopyGivenUp, "copy given up")                                                 \
  EVENT(Ran, "step run")                                                              \
  EVENT(Finished, "finish")                                                           \
  EVENT(Aborted, "abort")                                                             \
  EVENT(Discarded, "discard")                                                         \
  EVENT(Copied, "page copied")                                                        \
  EVENT(Moved, "token moved")                                                         \
  EVENT(Drafted, "drafts")                                                            \
  EVENT(Treed, "tree")                                                                \
  EVENT(Committed, "commit_tree")                                                     \
  EVENT(Appended, "append")                                                           \
  EVENT(AppendedLoading, "append while loading")                                      \
  EVENT(Forked, "fork")                                                               \
  EVENT(Rewound, "rewind")                                                            \
  EVENT(Preempted, "preempt")                                                         \
  EVENT(SaveAsked, "save")                                                            \
  EVENT(SaveRefused, "save refused")                                                  \
  EVENT(SavedWhole, "saved whole")                                                    \
  EVENT(SavedNothing, "saved nothing")                                                \
  EVENT(SaveFailed, "save failed")                                                    \
  EVENT(WriteBesideSave, "write beside a save")                                       \
  EVENT(ResumedTooSoon, "resume of one that is saved")                                \
  EVENT(RestoreRefused, "restore without pages")                                      \
  EVENT(RestoreStarted, "restore")                                                    \
  EVENT(RestoreMatched, "restore that matches")                                       \
  EVENT(RestoredAtOnce, "restored at once")                                           \
  EVENT(Restored, "restored")                                                         \
  EVENT(RestoreFailed, "restore failed")                                              \
  EVENT(AppendedSaved, "append while saved")                                          \
  EVENT(StoppedRestoring, "stop_loading while restored")                              \
  EVENT(EndedSaving, "end while being saved")                                         \
  EVENT(EndedSaved, "end while saved")                                                \
  EVENT(EndedRestoring, "end while restored")                                         \
  EVENT(Ended, "end")                                                                 \
  EVENT(EndedInFlight, "end in flight")                                               \
  EVENT(EndedLoading, "end while loading")                                            \
  EVENT(HandleDropped, "handle dropped")                                              \
  EVENT(EndedOtherPublish, "end that publishes")                                      \
  EVENT(Kept, "keep")                                                                 \
  EVENT(Unkept, "unkeep")                                                             \
  EVENT(KeepExpired, "keep expired")                                                  \
  EVENT(SpaceDropped, "drop key space")                                               \
  EVENT(SpaceDroppedInUse, "drop key space in use")                                   \
  EVENT(SpaceReplaced, "key space replaced")                                          \
  EVENT(Reclaimed, "reclaim")                                                         \
  EVENT(StoppedLoading, "stop_loading")                                               \
  EVENT(LookedUp, "lookup")                                                           \
  EVENT(ExtraKeys, "extra keys")                                                      \
  EVENT(Ttl, "ttl")                                                                   \
  EVENT(PrefetchBestEffort, "prefetch best effort")                                   \
  EVENT(PrefetchWait, "prefetch wait")                                                \
  EVENT(PrefetchTimeout, "prefetch timeout")                                          \
  EVENT(PartialHit, "partial hit")                                                    \
  EVENT(DeviceHit, "device hit")                                                      \
  EVENT(HostHit, "host hit")                                                          \
  EVENT(LoadWanted, "load taken")                                                     \
  EVENT(StoreWanted, "store taken")                                                   \
  EVENT(Ready, "ready callback")                                                      \
  EVENT(LoadOk, "load ok")                                                            \
  EVENT(LoadIo, "load io")                                                            \
  EVENT(LoadChecksum, "load checksum")                                                \
  EVENT(LoadGeneration, "load generation")                                            \
  EVENT(LoadNameTag, "load name tag")                                                 \
  EVENT(LoadCancelled, "load cancelled")                                              \
  EVENT(StoreOk, "store ok")                                                          \
  EVENT(StoreIo, "store io")                                                          \
  EVENT(StoreCancelled, "store cancelled")                                            \
  EVENT(PartialGood, "some pages good")                                               \
  EVENT(CancelAsked, "cancellation")                                                  \
  EVENT(CancelHonoured, "cancellation honoured")                                      \
  EVENT(CancelTooLate, "cancellation late")                                           \
  EVENT(Flipped, "bit flipped")                                                       \
  EVENT(LostWrite, "write lost")                                                      \
  EVENT(Misdirected, "write misdirected")                                             \
  EVENT(Duplicate, "completion twice")                                                \
  EVENT(UnknownTransfer, "completion of nothing")                                     \
  EVENT(StaleGeneration, "completion of an old transfer")                             \
  EVENT(WrongRank, "completion of another rank")                                      \
  EVENT(Stuck, "mover stuck")                                                         \
  EVENT(Reordered, "completions reordered")                                           \
  EVENT(OtherRankLater, "ranks report apart")                                         \
  EVENT(WriteAfterCancel, "write after cancel")                                       \
  EVENT(WindowSet, "set_window")                                                      \
  EVENT(WindowSetWaiting, "set_window while waiting")                                 \
  EVENT(WindowNotSet, "set_window refused")                                           \
  EVENT(Slid, "step of a slid one")                                                   \
  EVENT(WindowRefused, "fork or rewind behind a window")                              \
  EVENT(DropRefused, "drop of a slid one refused")                                    \
  EVENT(SavedSlid, "save of a slid one")                                              \
  EVENT(SavedWindows, "save of windows besides")                                      \
  EVENT(RestoredSlid, "restored slid one")                                            \
  EVENT(RestoreCorrupt, "slid one corrupt")                                           \
  EVENT(ResumedCorrupt, "resume of a corrupt one")                                    \
  EVENT(Grown, "grow")                                                                \
  EVENT(Shrunk, "shrink")                                                             \
  EVENT(ResizeInUse, "resize refused")                                                \
  EVENT(ResizeTooSoon, "resize in flight")                                            \
  EVENT(Paused, "pause")                                                              \
  EVENT(PausedInFlight, "pause with transfers")                                       \
  EVENT(AdmittedPaused, "admit while paused")                                         \
  EVENT(Unpaused, "resume_transfers")                                                 \
  EVENT(SleepRefused, "sleep refused")                                                \
  EVENT(SleepAsked, "sleep")                                                          \
  EVENT(SleepWaits, "sleep that waits")                                               \
  EVENT(Asleep, "asleep")                                                             \
  EVENT(AsleepDropped, "asleep without anything")                                     \
  EVENT(AsleepSaved, "asleep with saved sequences")                                   \
  EVENT(AdmitAsleep, "admit while asleep")                                            \
  EVENT(WokenEarly, "wake before asleep")                                             \
  EVENT(Awake, "wake")                                                                \
  EVENT(WindDown, "wind down")                                                        \
  EVENT(LoneServed, "lone request served")                                            \
  EVENT(ResetInFlight, "reset with transfers")                                        \
  EVENT(LoadCheaper, "load is cheaper")                                               \
  EVENT(ComputeCheaper, "compute is cheaper")                                         \
  EVENT(RightChoice, "right choice")                                                  \
  EVENT(WrongChoice, "wrong choice")                                                  \
  EVENT(MissNone, "miss none")                                                        \
  EVENT(MissNeverSeen, "miss never seen")                                             \
  EVENT(MissEvictedDevice, "miss evicted from device")                                \
  EVENT(MissEvictedHost, "miss evicted from host")                                    \
  EVENT(MissLoadFailed, "miss load failed")                                           \
  EVENT(MissLoadTimedOut, "miss load timed out")                                      \
  EVENT(MissLoadCancelled, "miss load cancelled")                                     \
  EVENT(MissRecompute, "miss recompute cheaper")                                      \
  EVENT(MissKeySpace, "miss key space differs")                                       \
  EVENT(MissPartial, "miss partial page")                                             \
  EVENT(MissNotAsked, "miss not asked")                                               \
  EVENT(MissUnknown, "miss unknown")                                                  \
  EVENT(MissExact, "miss derived exactly")                                            \
  EVENT(MissLoose, "miss derived loosely")                                            \
  EVENT(Poisoned, "free pages filled")                                                \
  EVENT(DiskLooked, "look on disk")                                                   \
  EVENT(DiskHit, "disk hit")                                                          \
  EVENT(DiskLane, "lane run")                                                         \
  EVENT(DiskLaneStuck, "lane stuck")                                                  \
  EVENT(DiskApplied, "disk completions applied")                                      \
  EVENT(DiskReordered, "disk completions reordered")                                  \
  EVENT(FlushAsked, "flush")                                                          \
  EVENT(Flushed, "flushed")                                                           \
  EVENT(FlushFailed, "flush failed")                                                  \
  EVENT(PutOnDisk, "put_on_disk")                                                     \
  EVENT(GotFromDisk, "get_from_disk")                                                 \
  EVENT(LookedOnDisk, "lookup_on_disk")                                               \
  EVENT(DirectRefused, "direct call refused")                                         \
  EVENT(DirectFound, "direct call that finds")                                        \
  EVENT(DirectFailed, "direct call failed")                                           \
  EVENT(DiskFull, "disk full, or no longer")                                          \
  EVENT(DiskBroken, "directory broken")                                               \
  EVENT(DiskFailed, "disk tier failed")                                               \
  EVENT(DiskFlipped, "bit flipped on disk")                                           \
  EVENT(DiskForgedName, "record of another page")                                     \
  EVENT(DiskForgedLayout, "record of another layout")                                 \
  EVENT(DiskReclaimed, "segments reclaimed")                                          \
  EVENT(CrashArmed, "end in the middle of something")                                 \
  EVENT(Crashed, "power lost")                                                        \
  EVENT(Killed, "process killed")                                                     \
  EVENT(DurableNoted, "page flushed")                                                 \
  EVENT(DurableFound, "flushed page found in the next life")                          \
  EVENT(SpaceRenamed, "drop lost with the process")                                   \
  EVENT(Endurance, "endurance budget")                                                \
  EVENT(Compressed, "compressed pages")                                               \
  EVENT(MissDisk, "miss behind the disk")                                             \
  EVENT(Served, "request served at once")                                             \
  EVENT(DiskArrived, "page from disk compared")                                       \
  EVENT(DiskLoadCheaper, "reading is cheaper")                                        \
  EVENT(DiskComputeCheaper, "compute is cheaper than reading")                        \
  EVENT(RightDiskChoice, "right choice of reading")                                   \
  EVENT(WrongDiskChoice, "wrong choice of reading")                                   \
  EVENT(OpeningFault, "fault while opening")                                          \
  EVENT(OpeningCutOff, "end while opening")                                           \
  EVENT(OpeningFailed, "open failed")                                                 \
  EVENT(OpenedInPart, "opened without a directory")                                   \
  EVENT(MissNotHeld, "missed: not held")                                              \
  EVENT(AnchoredStored, "pages of other groups stored")                               \
  EVENT(AnchoredLoaded, "pages of other groups loaded")                               \
  EVENT(AnchoredLoadFailed, "load of another group failed")                           \
  EVENT(SnapshotsRestored, "snapshot restored")                                       \
  EVENT(AnchoredEvicted, "page of another group evicted")                             \
  EVENT(Replayed, "hit with a replay")                                                \
  EVENT(RefusedByGroup, "refused by a group")                                         \
  EVENT(ChunkCut, "chunk cut at a checkpoint")                                        \
  EVENT(ShortOfAnchored, "plan without pages of another group")                       \
  EVENT(LoadedShorter, "loaded for a shorter hit")                                    \
  EVENT(HitChecked, "hit compared")                                                   \
  EVENT(HostHitChecked, "hit on the host compared")                                   \
  EVENT(AnchoredOnDiskStored, "pages of other groups written")                        \
  EVENT(AnchoredOnDiskLoaded, "pages of other groups read")                           \
  EVENT(AnchoredOnDiskLoadFailed, "read of another group failed")                     \
  EVENT(AnchoredOnDiskStoreFailed, "write of another group failed")                   \
  EVENT(AnchoredDiskReclaimed, "segments of another group reclaimed")                 \
  EVENT(AnchoredDurableFound, "flushed page of another group found in the next life") \
  EVENT(HitAfterRestart, "disk hit in a later life")                                  \
  EVENT(LookedHitChecked, "hit behind a look on disk compared")                       \
  EVENT(RanAhead, "sequence runs ahead")                                              \
  EVENT(PlannedArriving, "planned while pages arrive")                                \
  EVENT(TwinPlanned, "the same planned beside it, to be computed")                    \
  EVENT(ReadUnderWay, "layer read while its load goes on")                            \
  EVENT(Landed, "pages came in time for a step")                                      \
  EVENT(LostEntry, "entry lost with a load")                                          \
  EVENT(LostUnplanned, "load lost between steps")                                     \
  EVENT(LostEnded, "entry of an ended sequence lost")                                 \
  EVENT(LoadsAgain, "loading again after a step")                                     \
  EVENT(FinishTooSoon, "finish_step before pages came")                               \
  EVENT(DiscardedAhead, "discard before pages came")                                  \
  EVENT(AbortedAhead, "abort before pages came")                                      \
  EVENT(AbortedUnapplied, "abort before a snapshot came")                             \
  EVENT(EndedAhead, "end before pages came")                                          \
  EVENT(StoppedAhead, "stop_loading of a planned one")                                \
  EVENT(RemoteRan, "remote tier run")                                                 \
  EVENT(RemoteHit, "remote hit")                                                      \
  EVENT(RemoteHitAfterRestart, "remote hit after a restart")                          \
  EVENT(RemoteStored, "pages put on the server")                                      \
  EVENT(RemoteLoadFailed, "load from the server failed")                              \
  EVENT(RemoteLate, "load from the server late")                                      \
  EVENT(RemoteStoreFailed, "store to the server failed")                              \
  EVENT(RemoteNodeChanged, "server stopped, failing or back")                         \
  EVENT(RemoteEmptied, "server restarted empty")

enum class SimEvent : std::uint8_t {
#define QUIRE_SIM_EVENT_NAME(name, words) name,
  QUIRE_SIM_EVENTS(QUIRE_SIM_EVENT_NAME)
#undef QUIRE_SIM_EVENT_NAME
};

inline constexpr std::array kSimEventWords = {
#define QUIRE_SIM_EVENT_WORDS(name, words) std::string_view(words),
    QUIRE_SIM_EVENTS(QUIRE_SIM_EVENT_WORDS)
#undef QUIRE_SIM_EVENT_WORDS
};
inline constexpr std::size_t kSimEventCount = kSimEventWords.size();
/// This one and those behind it happen only in seeds with a remote tier.
inline constexpr auto kFirstRemoteEvent = static_cast<std::size_t>(SimEvent::RemoteRan);

[[nodiscard]] constexpr std::string_view to_string(SimEvent event) {
  return kSimEventWords[static_cast<std::size_t>(event)];
}

}  // namespace quire::testing
