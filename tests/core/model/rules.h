/* The rules of the protocol, each of which can be broken by name, and the configuration that catches it.
 *
 * A broken rule is not a strawman but the code one would write without it: the step left out, or two steps the other way
 * round. Weak memory shows as such a swap: the model itself is sequentially consistent.
 */
#ifndef RF_MODEL_RULES_H
#define RF_MODEL_RULES_H

#include <stdbool.h>

#define RULES(X)                                                                                                      \
    /* -- claiming -- */                                                                                              \
    X(CLAIM_WITHOUT_OWNER, "claim-without-owner", "kill", "the owner is stored after the claim, not with it")         \
    X(CLAIM_IGNORES_TICKET, "claim-ignores-ticket", "stale", "a cell is claimed whatever its ticket")                 \
    X(CLAIM_BY_STORE, "claim-by-store", "small", "a cell is claimed by load and store")                               \
    X(CURSOR_IGNORES_REAPS, "cursor-ignores-reaps", "kill-2", "the cursor is not set back after a reap")              \
    X(SHARED_MUTEX, "shared-mutex", "kill", "a mutex in shared memory is held while claiming")                        \
    /* -- filling, and blame -- */                                                                                    \
    X(MARKS_KEPT, "marks-kept", "failures", "a later attempt keeps the failed marks of an earlier one")               \
    X(ATTEMPT_KEPT, "attempt-kept", "failures", "the reaper does not raise the attempt")                              \
    X(BLAME_ENDS_LATE, "blame-ends-late", "poison", "the blame ends with the ticket, not with the row")               \
    X(BLAME_NOT_CLEARED, "blame-not-cleared", "poison", "the blame does not even end with the ticket")                \
    X(BLAME_FIRST_ROW, "blame-first-row", "poison", "the first row of a ticket is blamed for all")                    \
    X(BLAME_AFTER_SAMPLE, "blame-after-sample", "poison", "the row is written to the line after dataset[i]")          \
    X(KILLED_ROW_RUNS, "killed-row-runs", "poison", "a row that was given up is run again")                           \
    X(MAX_ATTEMPTS_IGNORED, "max-attempts-ignored", "poison", "a row is never given up")                              \
    X(TICKET_GIVEN_UP, "ticket-given-up", "poison", "the whole ticket is given up with its row")                      \
    X(DEATHS_KEPT, "deaths-kept", "poison", "the deaths of a slot's rows outlive its batch")                          \
    /* -- publishing -- */                                                                                            \
    X(READY_TOO_EARLY, "ready-too-early", "failures", "a ticket is published before its last row")                    \
    X(FAILED_AS_READY, "failed-as-ready", "failures", "a ticket with a failed row is published READY")                \
    X(WAKE_BEFORE_PUBLISH, "wake-before-publish", "tiny", "consumer_wait is read before the cell is final")           \
    X(PUBLISHER_IGNORES_FREE, "publisher-ignores-free", "break", "a publisher wakes no sleeper that waits for a slot")\
    /* -- a worker's sleep -- */                                                                                      \
    X(WORKER_SLEEPS_UNOBSERVED, "worker-sleeps-unobserved", "tiny", "a worker sleeps whatever work_seq says")         \
    X(WORKER_OBSERVES_LATE, "worker-observes-late", "tiny", "work_seq is read after the last look")                   \
    X(SLEEP_WITHOUT_BIT, "sleep-without-bit", "tiny", "a worker does not set its sleepers bit")                       \
    X(WAKE_BEFORE_BUMP, "wake-before-bump", "tiny", "workers are woken before work_seq is bumped")                    \
    X(BIND_WAKES_NONE, "bind-wakes-none", "tiny", "binding wakes no worker")                                          \
    X(BRISK_WAKES_NONE, "pace-wakes-none", "pace",                                                                    \
      "while tickets are quick no worker is woken, though all sleep")                                                 \
    X(CONSUMER_WAKES_NONE, "consumer-wakes-none", "pace",                                                             \
      "the consumer wakes no worker before it sleeps on a ticket that is AVAIL")                                      \
    X(CONSUMER_TRUSTS_THE_AWAKE, "consumer-trusts-the-awake", "pace",                                                 \
      "the consumer wakes no worker before it sleeps on a ticket that is AVAIL, if another is awake")                 \
    X(WOKEN_STAYS_AWAY, "woken-stays-away", "pace-calls", "a worker that is woken for nothing takes its bit away")    \
    /* -- the consumer's sleep -- */                                                                                  \
    X(CONSUMER_SLEEPS_UNOBSERVED, "consumer-sleeps-unobserved", "tiny",                                               \
      "the consumer sleeps whatever news_seq says")                                                                   \
    X(CONSUMER_OBSERVES_LATE, "consumer-observes-late", "tiny", "news_seq is read after the last look")               \
    X(FLAG_AFTER_LOOK, "flag-after-look", "tiny", "consumer_wait is written after the last look")                     \
    X(NO_LAST_BIND, "no-last-bind", "break", "the consumer does not try to bind before it sleeps")                    \
    X(SLEEP_WITH_LOCK, "sleep-with-lock", "consumers-break", "a consumer thread keeps the take lock while it sleeps") \
    X(WAKER_WITHDRAWS_FOR_ALL, "waker-withdraws-for-all", "consumers-tickets",                                        \
      "a consumer thread that wakes withdraws what another has announced")                                            \
    X(LEAVER_WAKES_NONE, "leaver-wakes-none", "consumers-tickets",                                                    \
      "a consumer thread that has waited, and goes, does not wake those that still wait")                             \
    X(NEWS_WAKE_ONE, "news-wake-one", "consumers", "news wake one of the consumer threads that wait")                 \
    X(BREAK_WAKES_NONE, "break-wakes-none", "consumers-break", "a break does not wake consumer threads that wait")    \
    /* -- binding -- */                                                                                               \
    X(BOUND_BEFORE_ENTRY, "bound-before-entry", "tiny", "bound is stored before slot_of")                             \
    X(BOUND_BEFORE_CELLS, "bound-before-cells", "tiny", "bound is stored before the cells are AVAIL")                 \
    X(RECORD_AFTER_CELLS, "record-after-cells", "tiny", "the record is written after the cells are AVAIL")            \
    X(DRY_BY_ROOM, "dry-by-room", "one", "an epoch is over when nothing is bound and then the plan is empty")         \
    X(DRY_BY_PLAN, "dry-by-plan", "one", "an epoch is over when the plan is empty and then nothing is bound")         \
    X(LATE_SLOT_CHOICE, "late-slot-choice", "stale", "a later batch may have its slot before an earlier one")         \
    X(BIND_WITHOUT_LOCK, "bind-without-lock", "long", "binders do not exclude each other")                            \
    X(NO_LOOK_AFTER_UNLOCK, "no-look-after-unlock", "tiny", "the thread that unlocks does not look at the stack again")\
    /* -- taking and releasing -- */                                                                                  \
    X(TAKE_BY_LAST_CELL, "take-by-last-cell", "small", "a batch is taken when its last cell is final")                \
    X(TAKE_UNLOCKED, "take-unlocked", "consumers", "two consumer threads take without a lock")                        \
    X(BORDER_IGNORED, "border-ignored", "border", "a look does not stop at the border")                               \
    X(DROP_WITHOUT_COUNT, "drop-without-count", "exports", "the first drop frees the slot")                           \
    X(BUMP_BEFORE_BIND, "bump-before-bind", "break", "a release bumps news_seq before it tries to bind")              \
    X(BUSY_RELEASE_LOST, "busy-release-lost", "break",                                                                \
      "a release that finds the lock busy wakes no thread, and the one that unlocks looks at no stack")               \
    X(FORK_RELEASES, "fork-releases", "fork", "a forked child's drop releases the slot")                              \
    /* -- breaking off -- */                                                                                          \
    X(BREAK_WITHOUT_LOCK, "break-without-lock", "break", "a break does not take the binder's lock")                   \
    X(SWEEP_BY_STORE, "sweep-by-store", "break", "the sweep is a load and a store")                                   \
    X(NO_SWEEP, "no-sweep", "break", "a draining slot is not swept")                                                  \
    X(DRAINED_WHILE_CLAIMED, "drained-while-claimed", "break", "a slot is free although a cell is claimed")           \
    X(BREAK_KEEPS_HEAD, "break-keeps-head", "break", "a break does not move the head")                                \
    X(BREAK_KEEPS_PLAN, "break-keeps-plan", "break-plan", "a break does not drop the plan")                           \
    X(CANCEL_IS_A_FLAG, "cancel-is-a-flag", "break", "cancel_upto is a flag, not a ticket")                           \
    X(REAPER_IGNORES_CANCEL, "reaper-ignores-cancel", "break-kill", "the reaper makes cancelled tickets AVAIL")       \
    /* -- tickets whose rows are made elsewhere -- */                                                                 \
    X(BREAK_TELLS_NO_HOLDER, "break-tells-no-holder", "away", "a break does not tell workers that hold tickets")      \
    X(BREAK_WAKES_NO_HOLDER, "break-wakes-no-holder", "away", "it bumps break_seq, and wakes no worker that holds some") \
    X(BREAK_TELLS_EARLY, "break-tells-early", "away", "it tells them before the tickets are cancelled")               \
    X(HOLDER_OBSERVES_LATE, "holder-observes-late", "away", "break_seq is read after the last look at the tickets")   \
    X(HOLDER_SLEEPS_UNOBSERVED, "holder-sleeps-unobserved", "away", "a worker that holds tickets sleeps whatever break_seq says") \
    X(FENCE_TELLS_NO_HOLDER, "fence-tells-no-holder", "away-fence", "a fence does not tell workers that hold tickets") \
    X(STOP_TELLS_NO_HOLDER, "stop-tells-no-holder", "away-stop", "a stop does not tell workers that hold tickets")    \
    X(YIELDER_KEEPS_WAKE, "yielder-keeps-wake", "yield-kill", "a worker that leaves a ticket to others wakes none of them") \
    X(YIELDER_PASSES_ONCE, "yielder-passes-once", "yield-kill", "it wakes them once, and not for each wake that it had") \
    X(YIELDER_WAKES_ONE, "yielder-wakes-one", "yield-two", "it wakes one worker, which may leave the ticket as well") \
    X(YIELDER_COUNTS_ITSELF, "yielder-counts-itself", "yield-one", "a worker leaves tickets to those that leave them as well") \
    /* -- death -- */                                                                                                 \
    X(REAPER_WAKES_NO_CONSUMER, "reaper-wakes-no-consumer", "kill", "the reaper does not wake the consumer")          \
    X(REAPER_WAKES_NO_WORKERS, "reaper-wakes-no-workers", "kill-2", "the reaper does not wake the workers")           \
    X(RESPAWN_BEFORE_REAP, "respawn-before-reap", "kill", "an id is used again before its cells were reaped")         \
    X(REAP_SUSPECTS, "reap-suspects", "suspects", "a worker is reaped on suspicion, without proof of death")          \
    X(QUARANTINE_TOO_SHORT, "quarantine-too-short", "quarantine",                                                     \
      "a suspect's slot is used again before it is dead")                                                             \
    X(FENCE_KEEPS_PLAN, "fence-keeps-plan", "quarantine", "a fence does not set the plan back to what is not taken")  \
    X(FENCE_LOSES_INDICES, "fence-loses-indices", "quarantine",                                                       \
      "a slot is bound although the indices of a batch to be bound again stand in it")                                \
    X(NO_GUARD, "no-guard", "death", "nothing kills the workers of a dead consumer")                                  \
    /* -- ends -- */                                                                                                  \
    X(STOP_WAKES_NO_WORKERS, "stop-wakes-no-workers", "stop", "a stop does not wake the workers")                     \
    X(STOP_WAKES_NO_CONSUMER, "stop-wakes-no-consumer", "stop", "a stop does not wake the consumer")                  \
    X(ALARM_WAKES_NONE, "alarm-wakes-none", "alarm", "an alarm does not wake the consumer")

#define AS_RULE(rule, name, configuration, text) rule,
enum rule { RULES(AS_RULE) RULE_COUNT };
#undef AS_RULE

struct rule_text {
    const char *name, *configuration, *text;
};

extern const struct rule_text rule_texts[RULE_COUNT];
extern bool rules_broken[RULE_COUNT];

static inline bool broken(enum rule rule) { return rules_broken[rule]; }

#endif
