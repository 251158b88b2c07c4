/* A feed: other C code takes the batches of an epoch here, in threads that have neither the GIL nor
 * Python.
 *
 *   begin: asks Python, which begins an epoch and attaches its ring
 *   wait:  sleeps until the head batch is there, a slice at a time
 *   next:  takes it by rf_next(); where that needs the engine, asks Python, which takes it
 *
 * The feed's lock lets one caller in. It is held while a batch is waited for, and never while
 * Python is asked: a thread that holds the lock never waits for the GIL, and Python waits for the
 * lock without the GIL. A caller waits RF_SLICE_NS at a time. Between two waits the framework can
 * cancel the step.
 *
 * A step that brings no batch (Ctrl-C, the deadline) is gone for an iteration of a known number of
 * steps, but its batch is not: when the steps are done, begin() with RF_REST gives the epoch id
 * again, for as long as its epoch has batches.
 */
#ifndef RF_FEED_H
#define RF_FEED_H

#include "export/dlpack.h"

#define RF_SLICE_NS 100000000

struct rf_feed;

/* States of an iteration without an epoch id: at its first step, after its last. */
enum { RF_NEW = -1, RF_REST = -2 };
enum { RF_NO_EPOCH = 0, RF_OVER = -1 };

enum rf_reply {
    RF_REPLY_BATCH,
    RF_REPLY_END, /* of the epoch */
    RF_REPLY_ERROR,
    RF_REPLY_LATER, /* nothing has come yet */
};

struct rf_part { /* one leaf of a batch: C-contiguous, the rows are its first axis */
    uint64_t offset, row_size;
    int32_t axes, type;         /* type: the framework's own number of the dtype */
    int64_t shape[RF_MAX_AXES]; /* of a row */
};

/* A batch on its way out, or, without a ring, the end of the epoch; to be ended by done(). */
struct rf_handout {
    struct rf_feed *feed;
    struct rf_ring *ring;
    uint8_t *base;
    uint32_t slot, rows;
    bool copy; /* no slot would be left to fill: take its content, not its memory */
};

enum rf_question {
    RF_BEGIN, /* *number becomes the id of a new epoch */
    RF_TAKE,  /* the next batch of epoch *number, by way of give() */
    RF_LEFT,  /* *number is the step that the newest iteration has come to, and becomes its epoch
               * id, if that was its last step and batches are left; or RF_OVER */
};

struct rf_callbacks { /* how Python is asked. *error is malloc()ed text */
    enum rf_reply (*ask)(struct rf_feed *feed, enum rf_question question, int64_t *number,
                         struct rf_handout *handout, char **error);
    /* The number of the last Ctrl-C that Python's main thread has heard and does not get to,
     * perhaps because it waits for us; `told` if there is none but that one. Asked again and again
     * while a batch is waited for. */
    uint32_t (*interrupted)(uint32_t told, int64_t now_ns);
};

/* Everything about feeds: other libraries have this table and no symbol of ours. */
struct rf_feed_calls {
    /* ---- for Python ---- */

    /* A feed under a number of its own, of batches of at most `rows` rows. NULL without memory. */
    struct rf_feed *(*make)(const struct rf_callbacks *asks, uint32_t rows, uint32_t parts);
    struct rf_part *(*part)(struct rf_feed *feed, uint32_t part);
    uint64_t (*number)(const struct rf_feed *feed);
    /* The owner is going: calls by number no longer find the feed. */
    void (*end)(struct rf_feed *feed);

    /* In a forked child these do nothing; elsewhere they wait for a caller inside: without the GIL.
     * Have callers take from this ring, waiting for a batch up to `timeout_ns`. The epoch before is
     * over. */
    void (*attach)(struct rf_feed *feed, struct rf_ring *ring, int64_t timeout_ns);
    /* Take from no ring any more, and keep none. */
    void (*detach)(struct rf_feed *feed);

    /* Hand out what Python has taken and still holds. */
    void (*give)(struct rf_handout *handout, struct rf_ring *ring, uint32_t slot, uint32_t rows);
    /* Refuse all further calls of Python, which is about to end. Returns how many
     * are still running. */
    uint32_t (*leave)(void);

    /* ---- for the other C code ---- */

    /* The epoch id of an iteration at a step, from its state: the epoch id that it has had, or
     *   RF_NEW   that of a new epoch for its first step; for a later one, whose first batches were
     *            errors, that of the newest epoch, if no batch of it was given yet, else
     *            RF_NO_EPOCH
     *   RF_REST  that of the newest epoch, if it has batches left though its iteration has no
     *            steps, else RF_OVER. */
    enum rf_reply (*begin)(uint64_t number, int64_t state, int64_t step, int64_t *epoch_id,
                           char **error);
    /* Wait for the next batch of that epoch, RF_SLICE_NS at most. LATER: call again. BATCH: call
     * next(). ERROR: Ctrl-C has come, and no batch is lost. */
    enum rf_reply (*wait)(uint64_t number, int64_t epoch_id, char **error);
    /* The next batch of that epoch. Unless it is an error, done() must follow. */
    enum rf_reply (*next)(uint64_t number, int64_t epoch_id, struct rf_handout *handout,
                          char **error);
    uint32_t (*parts)(const struct rf_feed *feed);
    /* One more hold on the slot and the ring, which let_go() ends; NULL without memory. */
    void *(*hold)(const struct rf_handout *handout);
    /* From any thread, without the GIL or Python, also when all else is gone. */
    void (*let_go)(void *memory, size_t size, void *hold);
    void (*done)(struct rf_handout *handout);
};

extern const struct rf_feed_calls rf_feed_calls;

#endif
