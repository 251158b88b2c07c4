/* Every atomic operation of the core that asks for more than relaxed, and what comes of it when it is given less.
 *
 * ORDER  the scene fails: SEQ_CST when it is acquire or release only, ORDERED when it is relaxed.
 * SPARE  no scene fails when it is relaxed, and why. Where others do its work as well, they are a group, with a letter:
 * TOGETHER  the scene fails when all of a group are relaxed.
 *
 * Relacy shows old values, not early stores: that a relaxed store is seen before an earlier one which is seq_cst it
 * cannot show. So a SPARE is a line of defence that nothing here proves needed, not one to be taken away.
 */

/* -- a ticket: bound, claimed, published, taken, reaped -- */
ORDER("bind_batch", "store", "&control->bound", ORDERED, "fill")
ORDER("rf_claim_next", "load", "&control->bound", ORDERED, "fill")
ORDER("bind_batch", "store", "&binder->bound", ORDERED, "drops")
ORDER("rf_bound", "load", "&ring->binder->bound", ORDERED, "drops")
SPARE("bind_batch", "store", "&rf_cell_of(ring, slot, cell)->word", "",
      "a worker has loaded `bound` before, which brings the record too")
ORDER("try_claim", "swap", "&place->word", ORDERED, "reap")
ORDER("rf_publish", "swap", "&place->word", SEQ_CST, "fill")
SPARE("rf_unfinished", "load", "&place->word", "T", "take_head() loads it again")
SPARE("take_head", "load", "&place->word", "T", "rf_unfinished() has loaded it before")
TOGETHER('T', "fill")
SPARE("take_head", "store", "&hold->count", "", "a fork in another thread loads it, and none is played here")
SPARE("take_head", "store", "&control->head", "", "a head that is behind costs a worker a longer look")
SPARE("drain_bound", "store", "&control->head", "", "a head that is behind costs a worker a longer look")
SPARE("rf_claim_next", "load", "&control->head", "", "a head that is behind costs a worker a longer look")
SPARE("drain_bound", "store", "&control->cancel_upto", "", "workers may look late; the reaper has the lock")
ORDER("is_drained", "load", "&place->word", SEQ_CST, "break")
ORDER("is_drained", "swap", "&place->word", ORDERED, "break")
SPARE("take_back", "load", "&place->word", "", "the proof of a death comes after all that the dead have written")
ORDER("take_back", "store", "&place->word", ORDERED, "reap")
ORDER("rf_reap", "add", "&ring->control->reap_seq", ORDERED, "reap")
ORDER("rf_claim_next", "load", "&control->reap_seq", ORDERED, "reap")
SPARE("forget_line", "and", "&ring->control->sleepers[worker / 64]", "", "the bit is that of the dead")

/* -- the take lock -- */
ORDER("rf_lock_taking", "exchange", "&ring->binder->take_lock", ORDERED, "consumers")
ORDER("rf_unlock_taking", "store", "&ring->binder->take_lock", ORDERED, "consumers")

/* -- the plan, the lock, releases -- */
ORDER("plan_batch", "store", "&binder->plan_write", ORDERED, "plan")
ORDER("bind_all", "load", "&binder->plan_write", ORDERED, "plan")
ORDER("bind_batch", "store", "&binder->plan_bound", ORDERED, "window")
ORDER("rf_plan_room", "load", "&binder->plan_bound", ORDERED, "window")
ORDER("rf_try_lock", "exchange", "&binder->lock", ORDERED, "release")
ORDER("rf_unlock", "store", "&binder->lock", ORDERED, "release")
ORDER("rf_drop", "sub", "&ring->binder->holds[slot].count", ORDERED, "release")
ORDER("release_slot", "swap", "&binder->released", ORDERED, "release")
ORDER("collect_released", "exchange", "&binder->released", ORDERED, "release")
SPARE("rf_unlock", "load", "&binder->released", "", "whoever has pushed a slot wakes the consumer, who binds")

/* -- a worker's sleep -- */
ORDER("set_asleep", "or", "word", SEQ_CST, "fill")
ORDER("count_asleep", "load", "&ring->control->sleepers[word]", SEQ_CST, "fill")
SPARE("bump_work", "add", "&ring->control->work_seq", "SL", "`bound`, or `stop`, tells a worker as much")
SPARE("rf_claim_wait", "load", "&control->work_seq", "SL", "`bound`, or `stop`, tells a worker as much")

/* -- the sleep of a worker that holds tickets -- */
ORDER("rf_tell_holders", "add", "&ring->control->break_seq", ORDERED, "hold")
ORDER("rf_breaks", "load", "&ring->control->break_seq", ORDERED, "hold")

/* -- the consumer's sleep -- */
ORDER("sleep_once", "store", "&control->consumer_wait", SEQ_CST, "fill")
ORDER("has_news", "load", "&place->word", SEQ_CST, "fill")
ORDER("rf_publish", "load", "&control->consumer_wait", SEQ_CST, "fill")
ORDER("rf_wake_consumer", "load", "&control->consumer_wait", SEQ_CST, "plan")
SPARE("rf_wake_consumer", "add", "&control->news_seq", "SA", "has_news() looks at what it tells of")
SPARE("sleep_once", "load", "&control->news_seq", "SA", "has_news() looks at what it tells of")

/* -- stop and alarm -- */
SPARE("rf_stop", "store", "&ring->control->stop", "S", "the counts bumped after it bring it")
SPARE("rf_stop", "store", "&ring->binder->stop", "S", "the counts bumped after it bring it")
SPARE("is_over", "load", "&ring->control->stop", "S", "the count bumped after it brings it")
SPARE("rf_look_now", "load", "&ring->binder->stop", "S", "has_news() looks again")
SPARE("has_news", "load", "&ring->binder->stop", "S", "the count bumped after it brings it")
TOGETHER('S', "stop")
SPARE("rf_retire", "store", "&ring->workers[worker].leave", "L", "the count bumped after it brings it")
SPARE("is_over", "load", "&ring->workers[worker].leave", "L", "the count bumped after it brings it")
TOGETHER('L', "leave")
SPARE("rf_alarm", "store", "&ring->binder->alarm", "A", "the count bumped after it brings it")
SPARE("rf_look_now", "load", "&ring->binder->alarm", "A", "has_news() looks again")
SPARE("has_news", "load", "&ring->binder->alarm", "A", "the count bumped after it brings it")
TOGETHER('A', "alarm")
