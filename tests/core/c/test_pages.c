/* Huge pages set aside and mapped, with a kernel, a clock and pages of the test's own choice. */
#define _GNU_SOURCE
#include "check.h"
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* At a third of a millisecond they take more than the allowance that all have together. */
#define MOST_CALLS 100
#define LOOK 22     /* MADV_POPULATE_READ */
#define POPULATE 23 /* MADV_POPULATE_WRITE */
#define COLLAPSE 25 /* MADV_COLLAPSE */

/* ---- what the kernel is asked, and what it says ---- */

struct call {
    uint8_t *address;
    uint64_t size;
};

static struct call populated[MOST_CALLS], collapsed[MOST_CALLS], removed[MOST_CALLS], room;
static uint32_t populates, collapses, removes;
static uint32_t most_populates, most_collapses; /* so many are granted */
static long faked_page;                         /* bytes; 0: the kernel's own */
/* The clock goes on by so much each time it is looked at. */
static int64_t tick_ns;
static int64_t ticks;
static bool touching;          /* what is populated is looked at */
static int refused_protection; /* mappings of this protection, or -1 */
static int refused_flag;       /* mappings with this flag, or 0 */
/* Children are forked as soon as a file is mapped, and while pages are collapsed. */
static bool forking;
static int hold[2]; /* they live until it is closed */
static pid_t early, late;

static void be_kind(void)
{
    populates = collapses = removes = 0;
    most_populates = most_collapses = MOST_CALLS;
    faked_page = 0;
    tick_ns = 1;
    touching = false;
    refused_protection = -1;
    refused_flag = 0;
    forking = false;
}

int __real_madvise(void *address, size_t size, int advice);
int __wrap_madvise(void *address, size_t size, int advice);
long __real_sysconf(int name);
long __wrap_sysconf(int name);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int64_t __wrap_rf_now_ns(void);

static int answer(struct call *calls, uint32_t *count, uint32_t most, struct call call)
{
    if (*count < most && *count < MOST_CALLS) {
        calls[(*count)++] = call;
        return 0;
    }
    errno = EINVAL;
    return -1;
}

/* A child that exits 0 if it maps no file of the test's. */
static pid_t fork_one(void)
{
    char none, line[512];
    pid_t forked = fork();
    if (forked != 0)
        return forked;
    close(hold[1]);
    bool kept = read(hold[0], &none, 1) != 0;
    FILE *areas = fopen("/proc/self/maps", "re");
    while (areas && fgets(line, sizeof line, areas))
        kept |= strstr(line, "memfd:ringfeed-test") != NULL;
    _exit(!areas || kept);
}

int __wrap_madvise(void *address, size_t size, int advice)
{
    struct call call = {address, size};
    if (advice == COLLAPSE && forking)
        late = fork_one();
    if (advice == LOOK && touching)
        (void)*(volatile uint8_t *)address;
    if (advice == LOOK || advice == POPULATE)
        return answer(populated, &populates, most_populates, call);
    if (advice == COLLAPSE)
        return answer(collapsed, &collapses, most_collapses, call);
    if (advice == MADV_REMOVE)
        return answer(removed, &removes, MOST_CALLS, call);
    return __real_madvise(address, size, advice);
}

long __wrap_sysconf(int name)
{
    return name == _SC_PAGESIZE && faked_page ? faked_page : __real_sysconf(name);
}

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (protection == refused_protection || flags & refused_flag) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *given = __real_mmap(address, size, protection, flags, fd, offset);
    if (forking && fd >= 0)
        early = fork_one();
    if (protection == PROT_NONE)
        room = (struct call){given, size};
    return given;
}

int64_t __wrap_rf_now_ns(void) { return ticks += tick_ns; }

/* ---- setting aside ---- */

/* Whether the page of a byte is mapped. */
static bool is_mapped(const uint8_t *address)
{
    unsigned char resident;
    uintptr_t within = (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE);
    return mincore((void *)(address - within), 1, &resident) == 0;
}

/* What rf_reserve_huge() says of a fresh file, part of which it is asked to set aside; `blocks`:
 * bytes that the file has afterwards. */
static bool reserved(uint64_t offset, uint64_t size, uint64_t *blocks)
{
    int fd = memfd_of(offset + size);
    struct stat file;
    bool given = rf_reserve_huge(fd, offset, size);
    *blocks = fstat(fd, &file) ? 0 : (uint64_t)file.st_blocks * 512;
    close(fd);
    return given;
}

/* Only whole huge pages are asked for, each after its first page, which is the kernel's own. */
static void whole_huge_pages_are_set_aside(void)
{
    const uint64_t sizes[] = {0,          1, RF_HUGE - 1, RF_HUGE, RF_HUGE + 1, 2 * RF_HUGE - 1,
                              3 * RF_HUGE};
    for (uint32_t number = 0; number < sizeof sizes / sizeof *sizes; number++) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), blocks, huge = sizes[number] / RF_HUGE;
        be_kind();
        CHECK(reserved(0, sizes[number], &blocks));
        CHECK_EQ(populates, huge);
        CHECK_EQ(collapses, huge);
        CHECK_EQ(blocks, huge * page); /* the first page of each: this kernel collapses nothing */
        for (uint32_t each = 0; each < huge; each++) {
            CHECK_EQ((uintptr_t)collapsed[each].address % RF_HUGE, 0);
            CHECK_EQ(collapsed[each].address - collapsed[0].address, each * RF_HUGE);
            CHECK_EQ(collapsed[each].size, RF_HUGE);
            CHECK_EQ(populated[each].address - collapsed[each].address, 0);
            CHECK_EQ(populated[each].size, page);
            CHECK(!is_mapped(
                collapsed[each].address)); /* or it could not be sealed against writing */
        }
    }
}

/* A later part of a file is set aside there, and the part before it is left alone. */
static void parts_are_set_aside_where_they_are(void)
{
    be_kind();
    touching = true;
    int fd = memfd_of(4 * RF_HUGE);
    CHECK(rf_reserve_huge(fd, 2 * RF_HUGE, RF_HUGE));
    CHECK_EQ(lseek(fd, 0, SEEK_DATA), 2 * RF_HUGE);
    CHECK_EQ(lseek(fd, 2 * RF_HUGE, SEEK_HOLE), 2 * RF_HUGE + (uint64_t)sysconf(_SC_PAGESIZE));
    CHECK(lseek(fd, 3 * RF_HUGE, SEEK_DATA) < 0 && errno == ENXIO);
    close(fd);
}

/* A kernel that refuses is not asked again, and it is told. */
static void refusals_end_it(void)
{
    uint64_t blocks;
    be_kind();
    most_populates = 0;
    CHECK(!reserved(0, 3 * RF_HUGE, &blocks));
    CHECK_EQ(collapses, 0);
    be_kind();
    most_collapses = 1;
    CHECK(!reserved(0, 3 * RF_HUGE, &blocks));
    CHECK_EQ(populates, 2);
    be_kind();
    refused_protection = PROT_READ;
    CHECK(!reserved(0, 3 * RF_HUGE, &blocks));
    CHECK_EQ(populates, 0);
    be_kind();
    CHECK(!rf_reserve_huge(-1, 0, RF_HUGE));
}

/* A file whose size is sealed and too small has no room for the page: no call that would be a
 * SIGBUS is made. */
static void files_that_are_too_short_are_refused(void)
{
    be_kind();
    int fd = memfd_create("ringfeed-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(fd, RF_HUGE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_GROW) == 0);
    CHECK(!rf_reserve_huge(fd, 0, 2 * RF_HUGE));
    CHECK_EQ(populates, 1);
    CHECK_EQ(collapses, 1);
    close(fd);
}

/* Whoever is forked meanwhile has nothing of the file, and it can be sealed against writing
 * while he lives. */
static void children_keep_nothing_of_it(void)
{
    int status = -1, fd = memfd_create("ringfeed-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    be_kind();
    forking = true;
    CHECK(pipe(hold) == 0 && ftruncate(fd, RF_HUGE) == 0);
    CHECK(rf_reserve_huge(fd, 0, RF_HUGE));
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    close(hold[0]);
    close(hold[1]);
    CHECK_EQ(waitpid(early, NULL, 0), early);
    CHECK_EQ(waitpid(late, &status, 0), late);
    CHECK_EQ(status, 0);
    close(fd);
}

/* It ends where the kernel is slow: the first twenty milliseconds are lost in any case. */
static void slowness_ends_it(void)
{
    uint64_t blocks;
    be_kind();
    tick_ns = 3000000;
    CHECK(!reserved(0, MOST_CALLS * RF_HUGE, &blocks));
    CHECK(collapses > 1 && collapses < 10);
}

/* A third of a millisecond each is what they take where there are any, however many they are. */
static void quickness_has_no_end(void)
{
    uint64_t blocks;
    be_kind();
    tick_ns = 300000;
    CHECK(reserved(0, MOST_CALLS * RF_HUGE, &blocks));
    CHECK_EQ(collapses, MOST_CALLS);
}

/* ---- mappings ---- */

static const uint64_t mapped_sizes[] = {1, RF_HUGE - 1, RF_HUGE, RF_HUGE + 1, 3 * RF_HUGE + 5000};

/* Mappings of a huge page or more begin where one can be mapped; all of the file is there, and its
 * writes are shared. */
static void shared_mappings_are_aligned(void)
{
    be_kind();
    for (uint32_t number = 0; number < sizeof mapped_sizes / sizeof *mapped_sizes; number++) {
        uint64_t size = mapped_sizes[number];
        int fd = memfd_of(size);
        uint8_t *one = rf_map(fd, size, 0), *other = rf_map(fd, size, 1);
        CHECK(one && other && one != other);
        CHECK_EQ(size < RF_HUGE ? 0 : (uintptr_t)one % RF_HUGE | (uintptr_t)other % RF_HUGE, 0);
        one[size - 1] = 7;
        CHECK_EQ(other[size - 1], 7);
        rf_unmap(one, size);
        rf_unmap(other, size);
        close(fd);
    }
}

/* The same where pages are larger: as on ARM. */
static void larger_pages_are_aligned_as_well(void)
{
    const long pages[] = {16384, 65536};
    for (uint32_t number = 0; number < sizeof pages / sizeof *pages; number++) {
        be_kind();
        faked_page = pages[number];
        int fd = memfd_of(RF_HUGE + 1);
        uint8_t *address = rf_map(fd, RF_HUGE + 1, 1);
        uint64_t blocks, size;
        CHECK(address && (uintptr_t)address % RF_HUGE == 0);
        address[RF_HUGE] = 1;
        uint8_t *own = rf_map_private(fd, 1, &size);
        CHECK(own && (uintptr_t)own % RF_HUGE == 0 && own[RF_HUGE] == 1);
        CHECK(reserved(0, RF_HUGE, &blocks));
        CHECK_EQ(populated[0].size, (uint64_t)pages[number]);
        close(fd);
    }
}

/* Pages are given back where they are whole, whatever their size. */
static void only_whole_pages_are_given_back(void)
{
    static _Alignas(65536) uint8_t memory[4 * 65536];
    const long pages[] = {4096, 16384, 65536};
    for (uint32_t number = 0; number < sizeof pages / sizeof *pages; number++) {
        uint64_t page = (uint64_t)pages[number];
        be_kind();
        faked_page = pages[number];
        CHECK_EQ(rf_unpopulate(memory + 1, page - 1), 0);
        CHECK_EQ(rf_unpopulate(memory + 1, 2 * page - 2), 0);
        CHECK_EQ(removes, 0);
        CHECK_EQ(rf_unpopulate(memory + 1, 2 * page - 1), 0);
        CHECK_EQ(rf_unpopulate(memory, 3 * page + 1), 0);
        CHECK_EQ(removes, 2);
        CHECK(removed[0].address == memory + page && removed[0].size == page);
        CHECK(removed[1].address == memory && removed[1].size == 3 * page);
        rf_populate(memory + page + 1, 1);
        CHECK(populates == 1 && populated[0].address == memory + page && populated[0].size == 2);
    }
}

/* Nothing but the file stays mapped of the room in which its place was looked for; nothing at all,
 * where it cannot be. */
static void no_room_is_left_around_a_mapping(void)
{
    be_kind();
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), size = RF_HUGE + 5 * page - 1,
             after = RF_HUGE + 5 * page;
    int fd = memfd_of(size);
    for (uint32_t number = 0; number < 4; number++) { /* each begins lower than the one before */
        uint8_t *address = rf_map(fd, size, 1);
        CHECK(address && room.size == after + RF_HUGE);
        CHECK(is_mapped(address) && is_mapped(address + size - 1));
        CHECK(!is_mapped(address + after));
        CHECK(room.address == address || !is_mapped(room.address));
        CHECK(room.address == address || !is_mapped(address - page));
        refused_protection = PROT_READ | PROT_WRITE;
        CHECK(!rf_map(fd, size, 1));
        CHECK(!is_mapped(room.address) && !is_mapped(room.address + room.size - page));
        be_kind();
    }
    close(fd);
}

static void check_mapped_anywhere(void)
{
    uint64_t size;
    int fd = memfd_of(RF_HUGE);
    uint8_t *address = rf_map(fd, RF_HUGE, 1), *own = rf_map_private(fd, 1, &size);
    CHECK(address && own);
    address[RF_HUGE - 1] = 1;
    CHECK_EQ(own[RF_HUGE - 1], 1);
    rf_unmap(address, RF_HUGE);
    rf_unmap(own, size);
    close(fd);
}

/* Where there is no room to choose a place in, or none for both it and the file, the file
 * is mapped anywhere. */
static void without_room_mappings_are_made_anywhere(void)
{
    be_kind();
    refused_protection = PROT_NONE;
    check_mapped_anywhere();
    be_kind();
    refused_flag = MAP_FIXED;
    check_mapped_anywhere();
    CHECK(!is_mapped(room.address));
}

/* A file that cannot be mapped gives its errno, and the room goes. */
static void a_refused_mapping_leaves_nothing(void)
{
    uint64_t size = 0;
    int fd = memfd_of(RF_HUGE);
    be_kind();
    refused_protection = PROT_READ | PROT_WRITE;
    errno = 0;
    CHECK(!rf_map(fd, RF_HUGE, 1) && errno == ENOMEM);
    errno = 0;
    CHECK(!rf_map_private(fd, 1, &size) && errno == ENOMEM);
    close(fd);
}

/* What is written to a private mapping is seen by nobody else; what was in the file is there. */
static void private_mappings_are_private(void)
{
    be_kind();
    for (uint32_t number = 0; number < sizeof mapped_sizes / sizeof *mapped_sizes; number++) {
        uint64_t size = mapped_sizes[number], got = 0;
        int fd = memfd_of(size);
        uint8_t byte = 5;
        CHECK(pwrite(fd, &byte, 1, (off_t)size - 1) == 1);
        uint8_t *one = rf_map_private(fd, size, &got), *other = rf_map_private(fd, 0, &got);
        CHECK(one && other);
        CHECK_EQ(got, size);
        CHECK_EQ(size < RF_HUGE ? 0 : (uintptr_t)one % RF_HUGE, 0);
        CHECK_EQ(one[size - 1], 5);
        one[size - 1] = 6;
        CHECK_EQ(other[size - 1], 5);
        CHECK(pread(fd, &byte, 1, (off_t)size - 1) == 1 && byte == 5);
        rf_unmap(one, size);
        rf_unmap(other, size);
        close(fd);
    }
}

/* A file that is shorter than it should be, or empty, is refused, and its size is told; what is no
 * file gives its errno. */
static void private_mappings_refuse_short_files(void)
{
    be_kind();
    uint64_t size = 0;
    int fd = memfd_of(5000), empty = memfd_of(0);
    errno = 0;
    CHECK(!rf_map_private(fd, 5001, &size) && errno == EPROTO);
    CHECK_EQ(size, 5000);
    errno = 0;
    CHECK(!rf_map_private(empty, 0, &size) && errno == EPROTO);
    CHECK_EQ(size, 0);
    errno = 0;
    CHECK(!rf_map_private(-1, 0, &size) && errno == EBADF);
    close(fd);
    close(empty);
}

int main(void)
{
    check_begin();
    RUN(whole_huge_pages_are_set_aside);
    RUN(parts_are_set_aside_where_they_are);
    RUN(refusals_end_it);
    RUN(files_that_are_too_short_are_refused);
    RUN(children_keep_nothing_of_it);
    RUN(slowness_ends_it);
    RUN(quickness_has_no_end);
    RUN(shared_mappings_are_aligned);
    RUN(larger_pages_are_aligned_as_well);
    RUN(only_whole_pages_are_given_back);
    RUN(no_room_is_left_around_a_mapping);
    RUN(without_room_mappings_are_made_anywhere);
    RUN(a_refused_mapping_leaves_nothing);
    RUN(private_mappings_are_private);
    RUN(private_mappings_refuse_short_files);
    return check_end("test_pages");
}
