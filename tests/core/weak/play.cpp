// weak                      play each scene, in many executions
// weak --scene NAME         this one only
// weak --history            and tell the execution that fails, step by step
// weak --mutations          weaken each order that a scene needs: that scene must fail
// weak --survey             weaken every order, in every scene: what orders.h says must be so, no more and no less
// weak EXECUTIONS           of each scene (of each mutation: at most)
#include "world.hpp"

#include <cstdio>
#include <cstring>
#include <iostream>
#include <streambuf>
#include <string>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

// ---- one scene ----

const scene *current;

template <unsigned threads> struct suite : rl::test_suite<suite<threads>, threads> {
    world mine;

    void before()
    {
        mine.begin();
        stage_begin(&current->stage);
    }
    void thread(unsigned number) { current->thread[number](); }
    ~suite()
    {
        mine.end();
        stage_end();
    }
};

struct wishes {
    unsigned long executions = 20000;
    bool history = false, mutations = false, survey = false;
    std::string scene; // empty: all
};

struct outcome {
    rl::test_result_e result;
    unsigned long executions;
};

struct nowhere : std::streambuf { // Relacy minds a stream that allocates
    int overflow(int letter) { return letter; }
};

outcome play(const scene &scene, const wishes &wishes)
{
    nowhere none;
    std::ostream silent(&none);
    rl::test_params params;
    params.iteration_count = wishes.executions;
    params.execution_depth_limit = 20000;
    params.output_stream = wishes.history ? &std::cout : &silent;
    params.progress_stream = &silent;
    current = &scene;
    if (scene.threads == 2)
        rl::simulate<suite<2>>(params);
    else if (scene.threads == 3)
        rl::simulate<suite<3>>(params);
    else
        rl::simulate<suite<4>>(params);
    return {params.test_result, (unsigned long)params.stop_iteration};
}

bool all_seen()
{
    bool well = true;
    for (int number = 0; number < order_count; number++)
        if (!order_seen[number]) {
            std::printf("%s: %s of %s: orders.h names it, and no scene comes there\n", orders[number].function,
                        orders[number].operation, orders[number].object);
            well = false;
        }
    return well;
}

bool play_all(const wishes &wishes)
{
    bool well = true;
    unsigned long executions = 0;
    for (unsigned number = 0; number < scene_count; number++) {
        if (!wishes.scene.empty() && wishes.scene != scenes[number].name)
            continue;
        outcome outcome = play(scenes[number], wishes);
        well &= outcome.result == rl::test_result_success;
        executions += outcome.executions;
        std::printf("%-10s  %-40s %8lu executions  %s\n", scenes[number].name, scenes[number].about, outcome.executions,
                    rl::test_result_str(outcome.result));
        std::fflush(stdout);
    }
    std::printf("%lu executions\n", executions);
    return well && (!wishes.scene.empty() || all_seen());
}

// ---- mutations ----

enum ended { PASSED, FAILED, REFUSED };
const rlim_t CPU_S = 300; // of one scene with one order broken

// In a child, since without an order the core may write anywhere, or never end.
ended play_broken(const scene &scene, const breakage &breakage, const wishes &wishes)
{
    std::fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        broken = breakage;
        rlimit most = {CPU_S, CPU_S};
        setrlimit(RLIMIT_CPU, &most);
        (void)!freopen("/dev/null", "w", stderr);
        outcome outcome = play(scene, wishes);
        if (outcome.result != rl::test_result_success)
            std::printf("  %-10s %6lu executions  %s", scene.name, outcome.executions,
                        rl::test_result_str(outcome.result));
        std::fflush(stdout);
        _exit(outcome.result == rl::test_result_success ? PASSED : FAILED);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED)
        fail(": could not be played; see what `weak` alone says");
    if (!WIFEXITED(status))
        std::printf("  %-10s died of signal %d", scene.name, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == PASSED ? PASSED : FAILED;
}

// Whether some scene fails; `only`: not the others.
bool is_caught(const breakage &breakage, const char *only, const wishes &wishes)
{
    for (unsigned number = 0; number < scene_count; number++)
        if ((!only || !std::strcmp(only, scenes[number].name)) &&
            play_broken(scenes[number], breakage, wishes) == FAILED)
            return true;
    std::printf("  %s passes", only ? only : "every scene");
    return false;
}

void name_order(const order &order, strength strength)
{
    std::printf("%-16s %-8s %-42s %-8s", order.function, order.operation, order.object,
                strength == RELAXED ? "relaxed" : "acq/rel");
}

// What is weaker than needed must fail.
bool check_need(int number, const wishes &wishes)
{
    const order &order = orders[number];
    strength strength = order.what == SEQ_CST ? ACQUIRE_RELEASE : RELAXED;
    name_order(order, strength);
    bool caught = is_caught({number, 0, strength}, order.scene, wishes);
    std::printf("%s\n", caught ? "" : ": NOT CAUGHT");
    return caught;
}

// And what is as weak as needed must not.
bool check_no_more_need(int number, const wishes &wishes)
{
    const order &order = orders[number];
    strength strength = order.what == NOTHING ? RELAXED : ACQUIRE_RELEASE;
    name_order(order, strength);
    bool caught = is_caught({number, 0, strength}, nullptr, wishes);
    std::printf("%s%s\n", caught ? ": orders.h SAYS OTHERWISE" : ": ", caught ? "" : order.why);
    return !caught;
}

// Of spare orders that stand in for each other, one must be kept.
bool check_group(char letter, strength strength, const char *scene, const wishes &wishes)
{
    if (letter == EVERY_GROUP)
        std::printf("%-68s%-8s", "every order of the core", strength == RELAXED ? "relaxed" : "acq/rel");
    else
        std::printf("every spare order of group %c%-40s%-8s", letter, "", "relaxed");
    bool caught = is_caught({NO_ORDER, letter, strength}, scene, wishes);
    std::printf("%s\n", caught ? "" : ": NOT CAUGHT");
    return caught;
}

bool break_orders(const wishes &wishes)
{
    unsigned broken = 2, caught = 0;
    caught += check_group(EVERY_GROUP, RELAXED, nullptr, wishes);
    caught += check_group(EVERY_GROUP, ACQUIRE_RELEASE, nullptr, wishes);
    for (const group *group = groups; group->letter; group++) {
        caught += check_group(group->letter, RELAXED, group->scene, wishes);
        broken++;
    }
    for (int number = 0; number < order_count; number++)
        if (orders[number].what != NOTHING) {
            caught += check_need(number, wishes);
            broken++;
        }
    std::printf("%u of %u mutations caught\n", caught, broken);
    bool well = caught == broken;
    for (int number = 0; wishes.survey && number < order_count; number++)
        if (orders[number].what != SEQ_CST)
            well &= check_no_more_need(number, wishes);
    return well;
}

bool read_words(char **words, wishes &wishes)
{
    for (; *words; words++) {
        std::string word = *words;
        if (word == "--mutations")
            wishes.mutations = true;
        else if (word == "--survey")
            wishes.mutations = wishes.survey = true;
        else if (word == "--scene" && words[1])
            wishes.scene = *++words;
        else if (word == "--history")
            wishes.history = true;
        else if (word.find_first_not_of("0123456789") == std::string::npos && !word.empty())
            wishes.executions = std::stoul(word);
        else
            return false;
    }
    return true;
}

} // namespace

int main(int, char **words)
{
    wishes wishes;
    if (!read_words(words + 1, wishes)) {
        std::fprintf(stderr, "play.cpp says what may be asked for\n");
        return 2;
    }
    return !(wishes.mutations ? break_orders(wishes) : play_all(wishes));
}
