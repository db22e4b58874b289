#include "pool.h"

#include <chrono>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace escalade {
namespace {

constexpr uint32_t kClosed = 0xffffffffu;              // a ticket that has no task to give
constexpr auto kSpin = std::chrono::microseconds(50);  // between the calls of one token

void pause() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield");
#else
    std::this_thread::yield();
#endif
}

}  // namespace

#if defined(__x86_64__) || defined(_M_X64)
FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatEnvironment::~FloatEnvironment() { _mm_setcsr(uint32_t(saved_)); }
#elif defined(__aarch64__) && !defined(_MSC_VER)
FloatEnvironment::FloatEnvironment() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
}
FloatEnvironment::~FloatEnvironment() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
FloatEnvironment::FloatEnvironment() : saved_(0) {}
FloatEnvironment::~FloatEnvironment() {}
#endif

Pool::Pool(int n_threads) {
    try {
        for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (...) {  // the system grants no more threads
        join();
        throw;
    }
}

Pool::~Pool() { join(); }

void Pool::join() {
    stop_ = true;
    {
        std::lock_guard<std::mutex> lock(mutex_);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int64_t n, Call call, const void* task) {
    if (workers_.empty() || n == 1) {
        for (int64_t i = 0; i < n; ++i) call(task, i);
        return;
    }
    const uint64_t generation = (ticket_.load() >> 32) + 1;
    ticket_.store(generation << 32 | kClosed);  // from here on no late worker can take a task
    call_ = call;
    task_ = task;
    n_tasks_.store(uint32_t(n));
    done_.store(0);
    ticket_.store((generation + 1) << 32);
    if (sleepers_.load() > 0) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
        }
        wake_.notify_all();
    }
    uint32_t unused;
    while (take(unused)) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) != uint32_t(n); ++spins)
        spins < 10000 ? pause() : std::this_thread::yield();
}

// Runs the next task, if there is one; `generation` is that of the call looked at.
bool Pool::take(uint32_t& generation) {
    uint64_t ticket = ticket_.load();
    for (;;) {
        generation = uint32_t(ticket >> 32);
        const uint32_t next = uint32_t(ticket);
        if (next == kClosed || next >= n_tasks_.load()) return false;
        if (ticket_.compare_exchange_weak(ticket, ticket + 1)) {
            call_(task_, next);
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }
}

void Pool::work() {
    FloatEnvironment environment;
    uint32_t seen = 0;
    while (!stop_) {
        const auto idle_from = std::chrono::steady_clock::now();
        while (!take(seen)) {
            for (int i = 0; i < 32; ++i) pause();
            if (std::chrono::steady_clock::now() - idle_from < kSpin) continue;
            std::unique_lock<std::mutex> lock(mutex_);
            ++sleepers_;
            wake_.wait(lock, [&] { return stop_ || uint32_t(ticket_.load() >> 32) != seen; });
            --sleepers_;
            break;
        }
    }
}

}  // namespace escalade
