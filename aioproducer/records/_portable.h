/* Atomics, a mutex, a clock, a prefetch and a fast remainder, for GCC, Clang and MSVC.

   Included by _record_path.pyx and _columns.pxi, after Python.h. MSVC must not see any GCC extension
   here: tests/project/test_portable_c.py evaluates the conditions as MSVC does. */
#ifndef AIOPRODUCER_PORTABLE_H
#define AIOPRODUCER_PORTABLE_H

#include <stdint.h>
#include <time.h>

#ifdef Py_GIL_DISABLED
typedef PyMutex aioproducer_mutex;
#define aioproducer_lock(mutex) PyMutex_Lock(mutex)
#define aioproducer_unlock(mutex) PyMutex_Unlock(mutex)
#else    /* the GIL is sufficient */
typedef struct { char unused; } aioproducer_mutex;
#define aioproducer_lock(mutex) ((void)(mutex))
#define aioproducer_unlock(mutex) ((void)(mutex))
#endif

#ifdef _MSC_VER
#include <intrin.h>
/* An ARM64 processor reorders loads and stores. x64 keeps them in order, so only the compiler needs a barrier. */
#ifdef _M_ARM64
#define aioproducer_barrier() __dmb(_ARM64_BARRIER_ISH)
#else
#define aioproducer_barrier() _ReadWriteBarrier()
#endif
static __inline int aioproducer_is_set(const uint8_t *flag) {
    int value = __iso_volatile_load8((const volatile __int8 *)flag);
    aioproducer_barrier();
    return value;
}
static __inline void aioproducer_set(uint8_t *flag, uint8_t value) {
    aioproducer_barrier();
    __iso_volatile_store8((volatile __int8 *)flag, (__int8)value);
}
#define aioproducer_add(number, more) ((void)_InterlockedExchangeAdd((volatile long *)(number), more))
#define aioproducer_publish() aioproducer_barrier()
#else
#define aioproducer_is_set(flag) __atomic_load_n(flag, __ATOMIC_ACQUIRE)
#define aioproducer_set(flag, value) __atomic_store_n(flag, value, __ATOMIC_RELEASE)
#define aioproducer_add(number, more) ((void)__atomic_fetch_add(number, more, __ATOMIC_RELAXED))
#define aioproducer_publish() __atomic_thread_fence(__ATOMIC_RELEASE)
#endif

#if defined(__GNUC__) || defined(__clang__)
#define aioproducer_prefetch(at) \
    (__builtin_prefetch((at), 1), __builtin_prefetch((at) + 64, 1), __builtin_prefetch((at) + 128, 1))
#else
#define aioproducer_prefetch(at) ((void)0)
#endif

/* Milliseconds since 1970. */
static inline int64_t aioproducer_now_ms(void) {
    struct timespec now;
#ifdef _WIN32
    timespec_get(&now, TIME_UTC);
#else
    clock_gettime(CLOCK_REALTIME, &now);
#endif
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* value % count without a division; `inverse` is 2**64 / count, rounded up.
   Lemire, Kaser, Kurz, "Faster remainder by direct computation", 2019. */
static inline uint32_t aioproducer_remainder(uint32_t value, uint32_t count, uint64_t inverse) {
    uint64_t fraction = inverse * value;
#ifdef __SIZEOF_INT128__
    return (uint32_t)(((unsigned __int128)fraction * count) >> 64);
#else
    uint64_t low = ((fraction & 0xFFFFFFFFu) * count) >> 32;
    return (uint32_t)(((fraction >> 32) * count + low) >> 32);
#endif
}

#endif
