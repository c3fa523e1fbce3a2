// The scheduler of the fibers, and the program that runs a job: launches of kernels on buffers, read from a file, written to one.
#include "emulated_products.cpp"
#include "emulation.hpp"

#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <vector>

#ifdef OCTAVO_RACES
#include <sanitizer/tsan_interface.h>
#define RACES 1
#else
#define RACES 0
#endif
#ifdef OCTAVO_ADDRESSES
#include <sanitizer/common_interface_defs.h>
#endif
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace octavo_emulation {

struct Entry {
  const char* symbol;
  void (*call)(void** arguments);
};
extern const Entry entries[];
extern const int entry_count;

uint3 thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t STACK = 256 << 10;
constexpr size_t OWN = STACK + (sizeof(Copies) + 4095) / 4096 * 4096;  // a stack, and the thread's copies behind it
constexpr int LANES = 32;

// Where threads meet: the last one to come opens the next generation.
struct Meeting {
  int expected = 0, arrived = 0;
  unsigned generation = 0;
  char marks[2] = {};
};

struct Warp {
  Meeting meeting;
  std::vector<unsigned char> lanes[2];  // what each lane hands to the others, for two exchanges in turn
  int turn[LANES] = {};
};

struct Thread {
  ucontext_t context;
  void* stack_pointer = nullptr;
  unsigned char* stack = nullptr;
  uint3 index{};
  int number = 0;
  const Meeting* waits_for = nullptr;
  unsigned generation = 0;
  const char* at = "";
  bool done = false;
  Copies* copies = nullptr;
  void* fiber = nullptr;
  void* fake_stack = nullptr;

  void use(unsigned char* memory) {
    stack = memory;
    copies = reinterpret_cast<Copies*>(memory + STACK);
  }
};

std::vector<Thread> threads;
std::vector<Warp> warps;
Meeting block;
Thread* current;
unsigned char* shared;
size_t shared_size;
// Of each block where races are looked for: two blocks that wrote to one place would be taken for one. Else one for all.
std::vector<unsigned char*> shared_of_blocks;
void (*kernel)(void**);
void** kernel_arguments;
ucontext_t scheduler_context;
void* scheduler_stack_pointer;
void* scheduler_fiber;
char launch_begins, launch_ends, block_begins;
#ifdef OCTAVO_ADDRESSES
void* scheduler_fake_stack;
const void* scheduler_stack;
size_t scheduler_stack_size;
#endif

#if defined(__x86_64__)
// Saves what a call must keep, and goes on where another stack was left.
extern "C" void octavo_switch(void** from, void* to);
asm(R"(
.text
.globl octavo_switch
octavo_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#endif

void thread_main();

unsigned block_number() { return block_index.x + grid_size.x * (block_index.y + grid_size.y * block_index.z); }

#if RACES
// What the sanitizer knows of a thread. No two threads of a launch share one: it would take what they do to be in order. Those of
// one launch serve the next, whose threads begin behind all of it: to make one takes half a millisecond. It knows of 8,000 at once.
std::vector<void*> fibers;
constexpr size_t KEPT_FIBERS = 4096;

void* fiber_of(const Thread& thread) {
  size_t number = size_t(block_number()) * block_size.x * block_size.y * block_size.z + thread.number;
  if (number >= KEPT_FIBERS) return __tsan_create_fiber(0);
  while (fibers.size() <= number) fibers.push_back(__tsan_create_fiber(0));
  return fibers[number];
}

void leave_fiber(const Thread& thread) {
  size_t number = size_t(block_number()) * block_size.x * block_size.y * block_size.z + thread.number;
  if (number >= KEPT_FIBERS) __tsan_destroy_fiber(thread.fiber);
}
#endif

void prepare(Thread& thread) {
#if defined(__x86_64__)
  auto top = (reinterpret_cast<uintptr_t>(thread.stack + STACK) & ~uintptr_t(15)) - 8;
  auto slots = reinterpret_cast<void**>(top);
  *--slots = reinterpret_cast<void*>(&thread_main);
  for (int i = 0; i < 6; i++) *--slots = nullptr;
  thread.stack_pointer = slots;
#else
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack;
  thread.context.uc_stack.ss_size = STACK;
  makecontext(&thread.context, thread_main, 0);
#endif
#if RACES
  thread.fiber = fiber_of(thread);
#endif
}

void to_scheduler(bool last = false) {
  Thread* self = current;
#if RACES
  __tsan_switch_to_fiber(scheduler_fiber, 1);
#endif
#ifdef OCTAVO_ADDRESSES
  __sanitizer_start_switch_fiber(last ? nullptr : &self->fake_stack, scheduler_stack, scheduler_stack_size);
#endif
#if defined(__x86_64__)
  octavo_switch(&self->stack_pointer, scheduler_stack_pointer);
#else
  swapcontext(&self->context, &scheduler_context);
#endif
#ifdef OCTAVO_ADDRESSES
  __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler_stack, &scheduler_stack_size);
#endif
  (void)last;
}

void to_thread(Thread& thread) {
  current = &thread;
  thread_index = thread.index;
#if RACES
  __tsan_switch_to_fiber(thread.fiber, 1);
#endif
#ifdef OCTAVO_ADDRESSES
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, thread.stack, STACK);
#endif
#if defined(__x86_64__)
  octavo_switch(&scheduler_stack_pointer, thread.stack_pointer);
#else
  swapcontext(&scheduler_context, &thread.context);
#endif
#ifdef OCTAVO_ADDRESSES
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
}

void thread_main() {
#ifdef OCTAVO_ADDRESSES
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
#if RACES
  __tsan_acquire(&launch_begins);
  __tsan_acquire(&block_begins);
#endif
  kernel(kernel_arguments);
#if RACES
  __tsan_release(&launch_ends);
#endif
  current->done = true;
  // A thread that returns is not waited for any longer.
  auto leave = [](Meeting& meeting) {
    meeting.expected--;
    if (meeting.expected > 0 && meeting.arrived == meeting.expected) {
      meeting.arrived = 0;
      meeting.generation++;
    }
  };
  leave(block);
  leave(warps[current->number / LANES].meeting);
  to_scheduler(true);
  abort();
}

void meet(Meeting& meeting, const char* at) {
  Thread* self = current;
  unsigned generation = meeting.generation;
  if (++meeting.arrived == meeting.expected) {
    meeting.arrived = 0;
    meeting.generation++;
    return;
  }
  self->waits_for = &meeting;
  self->generation = generation;
  self->at = at;
  to_scheduler();
  self->waits_for = nullptr;
}

}  // namespace

unsigned char* shared_memory() { return shared; }
Copies& copies() { return *current->copies; }
int lane() { return current->number % LANES; }

void fail(const char* what) {
  fprintf(stderr, "block (%u, %u, %u), thread (%u, %u, %u): %s\n", block_index.x, block_index.y, block_index.z, thread_index.x,
          thread_index.y, thread_index.z, what);
  fflush(stderr);
  _exit(3);
}

// A meeting before which what each thread does is seen by all behind it. Of two marks in turn: who has come to the next meeting
// already has nothing to say to those who still leave this one.
static void meet_in_order(Meeting& meeting, const char* at) {
#if RACES
  char* mark = &meeting.marks[meeting.generation & 1];
  __tsan_release(mark);
  meet(meeting, at);
  __tsan_acquire(mark);
#else
  meet(meeting, at);
#endif
}

void barrier() { meet_in_order(block, "__syncthreads"); }
void warp_barrier() { meet_in_order(warps[current->number / LANES].meeting, "__syncwarp"); }

// What lanes hand to each other are registers: this file is compiled without the sanitizers, and calls no memcpy, which they see
// wherever it stands.
static void move(void* to, const void* from, int bytes) {
  for (int i = 0; i < bytes; i++) {
    static_cast<unsigned char*>(to)[i] = static_cast<const unsigned char*>(from)[i];
#if RACES
    asm volatile("" ::: "memory");
#endif
  }
}

// Of two buffers in turn: who writes the next but one has met all others at the next, and they are done with this one.
const void* exchange(const void* own, int bytes, bool of_whole_warp) {
  Warp& warp = warps[current->number / LANES];
  int at = lane();
  if (of_whole_warp && warp.meeting.expected != LANES) fail("an instruction of the whole warp in one that is not whole");
  auto& lanes = warp.lanes[warp.turn[at] ^= 1];
  move(lanes.data() + at * bytes, own, bytes);
  meet(warp.meeting, "an instruction of the whole warp");
  return lanes.data();
}

namespace {

unsigned char* pages(size_t size) {
  void* found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) fail("no memory for a block");
  return static_cast<unsigned char*>(found);
}

#if RACES
// Memory of the threads of one block: new pages, of which the sanitizer knows nothing yet. Blocks of one launch are in no order, so
// that two of them that write one place in global memory are found; what they have of their own is not the next one's.
struct BlockMemory {
  size_t size;
  unsigned char* begin;

  explicit BlockMemory(unsigned count) : size(count * OWN), begin(pages(size)) {
    for (unsigned i = 0; i < count; i++) threads[i].use(begin + i * OWN);
  }
  ~BlockMemory() { munmap(begin, size); }
};
#else
// Memory of the threads of every block in turn: pages, of which only those exist that a thread writes.
struct BlockMemory {
  explicit BlockMemory(unsigned count) {
    static unsigned reserved = 0;
    static unsigned char* begin = nullptr;
    if (count > reserved) {
      begin = pages(count * OWN);
      reserved = count;
    }
    for (unsigned i = 0; i < count; i++) threads[i].use(begin + i * OWN);
  }
};
#endif

// George Marsaglia, Xorshift RNGs, 2003.
struct Noise {
  unsigned state;

  explicit Noise(unsigned seed) : state(seed * 2654435761u + 88172645u) { state += !state; }
  unsigned operator()() {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
  }
};

void run_block(unsigned count, unsigned seed) {
  BlockMemory memory(count);
  block = Meeting{};
  block.expected = int(count);
  for (unsigned i = 0; i < count; i++) {
    Thread& thread = threads[i];
    thread.number = int(i);
    thread.index = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
    thread.done = false;
    thread.waits_for = nullptr;
    thread.copies->count = thread.copies->groups = 0;
    prepare(thread);
  }
  warps.resize((count + LANES - 1) / LANES);
  for (size_t i = 0; i < warps.size(); i++) {
    Warp& warp = warps[i];
    warp.meeting = Meeting{};
    warp.meeting.expected = int(count - i * LANES < LANES ? count - i * LANES : LANES);
    for (auto& lanes : warp.lanes) lanes.resize(LANES * 128);
    for (int& turn : warp.turn) turn = 0;
  }
  shared = shared_of_blocks[RACES ? block_number() : 0];
  Noise noise(seed + block_index.x * 7919 + block_index.y * 104729 + block_index.z);
  for (size_t i = 0; i < shared_size; i++) shared[i] = (unsigned char)(noise() >> 24);
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; i++) order[i] = i;
#if RACES
  __tsan_release(&block_begins);  // behind all that this made for the block's threads
#endif
  unsigned left = count;
  while (left) {
    for (unsigned i = count; seed && i > 1; i--) std::swap(order[i - 1], order[noise() % i]);
    bool moved = false;
    for (unsigned i : order) {
      Thread& thread = threads[i];
      if (thread.done || (thread.waits_for && thread.waits_for->generation == thread.generation)) continue;
      moved = true;
      to_thread(thread);
      if (thread.done) {
        left--;
        if (thread.copies->count) fail("returned before its asynchronous copies were waited for");
      }
    }
    if (!moved && left) {
      std::string where = "threads wait for each other:";
      for (unsigned i = 0; i < count; i++)
        if (!threads[i].done && where.size() < 400) where += " " + std::to_string(i) + " at " + threads[i].at;
      fail(where.c_str());
    }
  }
#if RACES
  for (unsigned i = 0; i < count; i++) leave_fiber(threads[i]);
#endif
}

template <class T>
T read(FILE* file) {
  T value;
  if (fread(&value, sizeof value, 1, file) != 1) {
    fprintf(stderr, "the job is truncated\n");
    exit(2);
  }
  return value;
}

}  // namespace
}  // namespace octavo_emulation

// JOB RESULT: int64 seed, count of buffers, each {size, whether it is written, bytes}; count of launches, each {entry, grid[3],
// block[3], shared bytes, count of arguments, each {buffer, offset}}. The result holds the written buffers.
int main(int argc, char** argv) {
  using namespace octavo_emulation;
  FILE* job = argc == 3 ? fopen(argv[1], "rb") : nullptr;
  if (!job) return fprintf(stderr, "usage: emulation JOB RESULT\n"), 2;
  auto seed = (unsigned)read<int64_t>(job);
  struct Buffer {
    unsigned char* data;
    size_t size;
    bool written;
  };
  std::vector<Buffer> buffers((size_t)read<int64_t>(job));
  for (auto& buffer : buffers) {
    buffer.size = (size_t)read<int64_t>(job);
    buffer.written = read<int64_t>(job) != 0;
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, buffer.size + !buffer.size)) return 2;
    buffer.data = static_cast<unsigned char*>(memory);
    if (fread(buffer.data, 1, buffer.size, job) != buffer.size) return fprintf(stderr, "the job is truncated\n"), 2;
  }
#if RACES
  scheduler_fiber = __tsan_get_current_fiber();
#endif
  auto launches = read<int64_t>(job);
  for (int64_t launch = 0; launch < launches; launch++) {
    auto entry = read<int64_t>(job);
    auto dimension = [&] { return (unsigned)read<int64_t>(job); };
    grid_size.x = dimension(), grid_size.y = dimension(), grid_size.z = dimension();
    block_size.x = dimension(), block_size.y = dimension(), block_size.z = dimension();
    shared_size = (size_t)read<int64_t>(job);
    std::vector<void*> arguments((size_t)read<int64_t>(job));
    for (auto& argument : arguments) {
      auto& buffer = buffers[(size_t)read<int64_t>(job)];
      argument = buffer.data + read<int64_t>(job);
    }
    kernel = entries[entry].call;
    kernel_arguments = arguments.data();
    unsigned count = block_size.x * block_size.y * block_size.z;
    if (threads.size() < count) threads = std::vector<Thread>(count);
    shared_of_blocks.resize(RACES ? size_t(grid_size.x) * grid_size.y * grid_size.z : 1);
    for (auto& each : shared_of_blocks) {
      void* memory = nullptr;
      if (posix_memalign(&memory, 1024, shared_size + !shared_size)) return fprintf(stderr, "no memory for a block\n"), 2;
      each = static_cast<unsigned char*>(memory);
    }
#if RACES
    __tsan_release(&launch_begins);
#endif
    for (unsigned z = 0; z < grid_size.z; z++)
      for (unsigned y = 0; y < grid_size.y; y++)
        for (unsigned x = 0; x < grid_size.x; x++) {
          block_index = {x, y, z};
          run_block(count, seed);
        }
#if RACES
    __tsan_acquire(&launch_ends);
#endif
    for (auto each : shared_of_blocks) free(each);
  }
  fclose(job);
  FILE* result = fopen(argv[2], "wb");
  if (!result) return fprintf(stderr, "cannot write %s\n", argv[2]), 2;
  for (auto& buffer : buffers)
    if (buffer.written && fwrite(buffer.data, 1, buffer.size, result) != buffer.size) return 2;
  return fclose(result);
}
