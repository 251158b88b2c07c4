/* model                      explore the bounded configurations
 * model --all                and the large ones
 * model --configuration NAME explore this one
 * model --break RULE         show what happens without a rule (in its configuration, or the one named)
 * model --mutations          break each rule in turn: each must be caught
 * model --list               name configurations and rules
 * --limit STATES             give up after so many, in each configuration
 * --every-order              try even those orders of steps that can make no difference
 */
#include "search.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wishes {
    const struct configuration *only;
    int rule; /* or -1 */
    bool all, mutations, list;
    uint64_t limit;
};

static bool explore(const struct configuration *one, uint64_t limit, uint64_t *states)
{
    configuration = one;
    struct found found = search_deep(limit);
    *states += found.states;
    printf("%-16s %11" PRIu64 " %12" PRIu64 " %7u %7.1f  %s\n", one->name, found.states, found.steps, found.depth,
           found.seconds, found.violation ? found.violation : found.complete ? "all is well" : "not finished: --limit");
    fflush(stdout);
    if (found.violation && found.depth < 100000) {
        printf("  a shortest way there:\n");
        found = search_wide(limit, true);
    }
    return !found.violation && found.complete;
}

static bool explore_all(const struct wishes *wishes)
{
    uint64_t states = 0;
    bool well = true;
    printf("%-16s %11s %12s %7s %7s\n", "configuration", "states", "steps", "longest", "seconds");
    for (unsigned number = 0; configuration_at(number); number++) {
        const struct configuration *one = configuration_at(number);
        if (wishes->only ? one == wishes->only : one->bounded || wishes->all)
            well &= explore(one, wishes->limit, &states);
    }
    printf("%" PRIu64 " states\n", states);
    return well;
}

static bool break_rule(int rule, const struct wishes *wishes, bool tell)
{
    rules_broken[rule] = every_order = true;
    configuration = wishes->only ? wishes->only : configuration_named(rule_texts[rule].configuration);
    if (tell)
        printf("%s: %s; in configuration %s\n", rule_texts[rule].name, rule_texts[rule].text, configuration->name);
    struct found found = search_wide(wishes->limit, tell);
    if (!found.violation)
        printf("%-28s NOT CAUGHT by %s (%" PRIu64 " states)\n", rule_texts[rule].name, configuration->name,
               found.states);
    else
        printf("%-28s %-12s %3u steps %9" PRIu64 " states %5.1f s  %s\n", rule_texts[rule].name, configuration->name,
               found.depth, found.states, found.seconds, found.violation);
    fflush(stdout);
    rules_broken[rule] = every_order = false;
    return found.violation;
}

static bool break_all(const struct wishes *wishes)
{
    unsigned caught = 0;
    for (int rule = 0; rule < RULE_COUNT; rule++)
        caught += break_rule(rule, wishes, false);
    printf("%u of %u caught\n", caught, (unsigned)RULE_COUNT);
    return caught == RULE_COUNT;
}

static bool list_all(void)
{
    for (unsigned number = 0; configuration_at(number); number++)
        printf("%-28s %s\n", configuration_at(number)->name, configuration_at(number)->about);
    for (int rule = 0; rule < RULE_COUNT; rule++)
        printf("--break %-28s %s\n", rule_texts[rule].name, rule_texts[rule].text);
    return true;
}

/* ---- the command line ---- */

static void refuse(const char *what, const char *got)
{
    fprintf(stderr, "model: %s \"%s\"; see model --list\n", what, got);
    exit(2);
}

static int rule_named(const char *name)
{
    for (int rule = 0; rule < RULE_COUNT; rule++)
        if (strcmp(rule_texts[rule].name, name) == 0)
            return rule;
    refuse("there is no rule", name);
    return -1;
}

static struct wishes parse(int count, char **words)
{
    struct wishes wishes = {.rule = -1, .limit = UINT64_MAX};
    for (int at = 1; at < count; at++) {
        const char *word = words[at], *value = at + 1 < count ? words[at + 1] : "";
        if (strcmp(word, "--all") == 0) {
            wishes.all = true;
        } else if (strcmp(word, "--mutations") == 0) {
            wishes.mutations = true;
        } else if (strcmp(word, "--every-order") == 0) {
            every_order = true;
        } else if (strcmp(word, "--list") == 0) {
            wishes.list = true;
        } else if (strcmp(word, "--break") == 0) {
            wishes.rule = rule_named(value), at++;
        } else if (strcmp(word, "--limit") == 0) {
            wishes.limit = strtoull(value, NULL, 10), at++;
        } else if (strcmp(word, "--configuration") == 0) {
            wishes.only = configuration_named(value), at++;
            if (!wishes.only)
                refuse("there is no configuration", value);
        } else {
            refuse("cannot make sense of", word);
        }
    }
    return wishes;
}

int main(int count, char **words)
{
    struct wishes wishes = parse(count, words);
    bool well = wishes.list        ? list_all()
                : wishes.mutations ? break_all(&wishes)
                : wishes.rule >= 0 ? break_rule(wishes.rule, &wishes, true)
                                   : explore_all(&wishes);
    return !well;
}
