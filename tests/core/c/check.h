/* All there is of a test framework. A test is a function; RUN() counts it, CHECK() ends it at the
 * first thing that is not so, and check_end() prints the one closing line. Each program is bounded
 * by an alarm. */
#ifndef RF_CHECK_H
#define RF_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK_LIMIT_S 300 /* no program runs longer, whatever hangs */

static int check_passed, check_failed;
static bool check_ok;

static inline void check_report(const char *file, int line, const char *what)
{
    check_ok = false;
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
}

static inline void check_report_numbers(const char *file, int line, const char *what, uint64_t got,
                                        uint64_t expected)
{
    check_ok = false;
    fprintf(stderr,
            "%s:%d: %s is %" PRIu64 " (0x%" PRIx64 "), expected %" PRIu64 " (0x%" PRIx64 ")\n",
            file, line, what, got, got, expected, expected);
}

/* Both leave the function they stand in, which returns nothing. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            check_report(__FILE__, __LINE__, #condition);                                          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(got, expected)                                                                    \
    do {                                                                                           \
        uint64_t check_got = (uint64_t)(got), check_expected = (uint64_t)(expected);               \
        if (check_got != check_expected) {                                                         \
            check_report_numbers(__FILE__, __LINE__, #got, check_got, check_expected);             \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define RUN(test) check_run(#test, test)

/* WITHOUT names the tests of what an emulator does not do. */
static inline void check_run(const char *name, void (*test)(void))
{
    if (getenv("WITHOUT") && strstr(getenv("WITHOUT"), name))
        return;
    check_ok = true;
    test();
    check_passed += check_ok;
    check_failed += !check_ok;
    if (!check_ok)
        fprintf(stderr, "FAILED: %s\n", name);
}

static inline void check_begin(void) { alarm(CHECK_LIMIT_S); }

static inline int check_end(const char *program)
{
    printf("%s: %d passed, %d failed\n", program, check_passed, check_failed);
    return check_failed != 0;
}

#endif
