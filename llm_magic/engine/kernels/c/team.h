// The team: one caller and helpers that take tasks from it.
//
// The caller publishes a ticket {sequence, count, next}; whoever raises `next` by compare-and-swap
// owns that task. A helper keeps no state between tasks: one that the system put to sleep, or that
// a fork left behind, holds nobody up, because the caller finishes alone what is unclaimed.
// fn and arg are stable from the publishing until done == count, and are read only after a
// successful claim of that sequence number, so they need no lock.

typedef struct {
  u64 ticket __attribute__((aligned(64)));   // sequence << 32 | count << 16 | next
  i32 done __attribute__((aligned(64)));     // tasks of this sequence number that have ended
  i32 sleepers __attribute__((aligned(64))); // helpers inside futex_wait
  i32 stop;
  i32 helpers __attribute__((aligned(64)));  // set by Python: helpers that were started
  i32 spin;                                  // thousands of ticks that an idle helper spins
  void (*fn)(void *, int);
  void *arg;
  u64 solo_until __attribute__((aligned(64)));  // the caller's own, in ticks: see `weigh`
  u64 penalty;
  i64 balance;
  u64 taken[2];  // ticks of a step of one row, a mean that follows: with helpers, alone
  i32 alone;     // how such steps run now
  i32 since;     // steps since the other way was tried
} team_t;

#define TEAM_WORD(name, index) \
  _Static_assert(__builtin_offsetof(team_t, name) == 4 * (index), "job.py: TEAM")
TEAM_WORD(stop, TEAM_STOP);
TEAM_WORD(helpers, TEAM_HELPERS);
TEAM_WORD(spin, TEAM_SPIN);
_Static_assert(sizeof(team_t) <= TEAM_BYTES, "job.py: TEAM_BYTES");

#define MILLISECOND 3000000ull  // in ticks, roughly

#if defined(LINUX) && defined(__x86_64__)
static long syscall4(long n, long a, long b, long c, long d) {
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return n;
}
#define SYS_FUTEX 202
#define SYS_YIELD 24
#elif defined(LINUX) && defined(__aarch64__)
static long syscall4(long n, long a, long b, long c, long d) {
  register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
}
#define SYS_FUTEX 98
#define SYS_YIELD 124
#else  // no helpers are started elsewhere: these are never reached
static long syscall4(long n, long a, long b, long c, long d) { return 0; }
#define SYS_FUTEX 0
#define SYS_YIELD 0
#endif
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129

INLINE u32 *sequence_word(team_t *t) { return (u32 *)&t->ticket + 1; }

// Takes one task if there is any. Returns 1 if it did.
INLINE int take_task(team_t *t) {
  u64 ticket = __atomic_load_n(&t->ticket, __ATOMIC_ACQUIRE);
  while ((ticket & 0xffff) < (ticket >> 16 & 0xffff)) {
    if (__atomic_compare_exchange_n(&t->ticket, &ticket, ticket + 1, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
      t->fn(t->arg, (int)(ticket & 0xffff));
      __atomic_add_fetch(&t->done, 1, __ATOMIC_RELEASE);
      return 1;
    }
  }
  return 0;
}

// Books whether the helpers give more time than they cost, and lets the caller work alone while they
// do not: where more threads want to run than there are cores, the system puts a helper aside in the
// middle of a task, and the caller waits for it. `own` tasks of `count` took the caller `work`; the
// others would have taken it as long for each, or half of that: alone, it has the memory to itself.
// What is saved is limited, since the caller may have been put aside in the middle of its own.
// A loss is forgiven once it is earned again; repeated, it keeps the helpers out longer each time.
static void weigh(team_t *t, int own, int count, u64 work, u64 waited, u64 now) {
  const u64 others = own ? work / own * (count - own) / 2 : waited;
  const i64 saved = (i64)MIN(others, MILLISECOND / 10);
  t->balance = MIN(t->balance + saved - (i64)waited, 4 * (i64)MILLISECOND);
  if (t->balance >= 4 * (i64)MILLISECOND) t->penalty = 0;
  if (t->balance >= -(i64)MILLISECOND) return;
  t->penalty = MAX(4 * MILLISECOND, MIN(2 * t->penalty, 512 * MILLISECOND));
  t->solo_until = now + t->penalty, t->balance = 0;
}

// Steps of one row consist of many short phases: beside a process that computes, even a helper that
// is rarely put aside makes them slower than the caller would be alone [SmolLM2, two cores, one
// of them 70 % busy: 200-250 tokens a second together, 340-400 alone]. What a single phase lost does
// not show it, whole steps do. So the other way is tried now and then, less often the more it costs:
// about 0.3 % of the time goes into it.
static int other_way(team_t *t) {
  const u64 now = t->taken[t->alone], other = t->taken[!t->alone];
  const u64 worse = now && other > now ? 300 * (other - now) / now : 0;
  const int turns = other ? (int)MAX(32, MIN(worse, 4096)) : 8;
  if (++t->since < turns) return 0;
  t->since = 0;
  return 1;
}

static void book(team_t *t, int alone, u64 took) {
  u64 *mean = t->taken + alone;
  // A step that the system interrupted counts as one of three times the mean. A try of the other way
  // that was the faster one counts alone: what its mean remembers is another situation.
  if (alone != t->alone && took < t->taken[t->alone]) *mean = took;
  else *mean = *mean ? *mean - *mean / 4 + MIN(took, 3 * *mean) / 4 : took;
  // Alone only where it is clearly faster: what disturbs comes and goes.
  const u64 limit = t->alone ? t->taken[0] : t->taken[0] - t->taken[0] / 8;
  if (t->taken[0] && t->taken[1]) t->alone = t->taken[1] < limit;
}

// Runs fn(arg, 0 .. count-1), on the helpers too.
static void run(team_t *t, void (*fn)(void *, int), void *arg, int count) {
  if (count <= 1 || !t->helpers || ticks() < t->solo_until) {
    for (int i = 0; i < count; i++) fn(arg, i);
    return;
  }
  for (; count > 0xffff; count--) fn(arg, count - 1);  // more than a ticket can count
  t->fn = fn, t->arg = arg, t->done = 0;
  // Atomic, since a late helper may be at a compare-and-swap here, though one that must fail.
  const u64 last = __atomic_load_n(&t->ticket, __ATOMIC_RELAXED);
  const u64 next = ((last >> 32) + 1) << 32 | (u64)count << 16;
  // Sequentially consistent: a helper that falls asleep either sees this ticket, or is counted.
  __atomic_exchange_n(&t->ticket, next, __ATOMIC_SEQ_CST);
  const i32 needed = MIN(count - 1, t->helpers);
  const i32 awake = t->helpers - __atomic_load_n(&t->sleepers, __ATOMIC_SEQ_CST);
  if (awake < needed)
    syscall4(SYS_FUTEX, (long)sequence_word(t), FUTEX_WAKE_PRIVATE, needed - awake, 0);
  const u64 began = ticks();
  int own = 0;
  while (take_task(t)) own++;
  const u64 idle = ticks();
  // A helper's last task should end within a few times what ours took; or it may need this core.
  const u64 patience = MAX(4 * (idle - began) / MAX(own, 1), MILLISECOND / 10);
  u64 waited = 0;
  while (__atomic_load_n(&t->done, __ATOMIC_ACQUIRE) != count) {
    pause();
    waited = ticks() - idle;
    if (waited > patience) syscall4(SYS_YIELD, 0, 0, 0, 0);
  }
  weigh(t, own, count, idle - began, waited, idle + waited);
}

// Life of a helper: until `stop`, takes tasks; spins when there are none, then sleeps.
static void help(team_t *t) {
  u64 idle = ticks();
  while (!__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
    u32 seen = __atomic_load_n(sequence_word(t), __ATOMIC_ACQUIRE);
    if (take_task(t)) {
      idle = ticks();
      continue;
    }
    if (ticks() - idle < (u64)t->spin * 1000) {
      pause();
      continue;
    }
    __atomic_add_fetch(&t->sleepers, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&t->stop, __ATOMIC_SEQ_CST))
      syscall4(SYS_FUTEX, (long)sequence_word(t), FUTEX_WAIT_PRIVATE, seen, 0);
    __atomic_sub_fetch(&t->sleepers, 1, __ATOMIC_SEQ_CST);
    idle = ticks();
  }
}

// Tells the helpers to leave. Each wakes because the sequence number changes under it.
static void dismiss(team_t *t) {
  __atomic_store_n(&t->stop, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&t->ticket, (u64)1 << 32, __ATOMIC_SEQ_CST);
  syscall4(SYS_FUTEX, (long)sequence_word(t), FUTEX_WAKE_PRIVATE, 1 << 16, 0);
}
