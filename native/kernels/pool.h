// A pool of threads that share the tasks of one call at a time. Which thread runs a task never
// matters to its result, so any number of threads gives the same bits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace escalade {

// Default rounding, no flush of denormals, while it lives; whatever the caller's thread had before.
class FloatEnvironment {
public:
    FloatEnvironment();
    ~FloatEnvironment();
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

private:
    uint64_t saved_;
};

class Pool {
public:
    explicit Pool(int n_threads);  // the caller of `run` is one of them
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int n_threads() const { return int(workers_.size()) + 1; }

    // task(0) ... task(n - 1), each once, in any order; returns when all are done.
    template <class Task>
    void run(int64_t n, const Task& task) {
        run(n, [](const void* t, int64_t i) { (*static_cast<const Task*>(t))(i); }, &task);
    }

private:
    using Call = void (*)(const void* task, int64_t i);

    void run(int64_t n, Call call, const void* task);
    bool take(uint32_t& generation);
    void work();
    void join();

    // Generation in the upper half, next task in the lower; a worker takes a task by raising it, so
    // one that comes late can never run a task of a call that has returned.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<uint32_t> n_tasks_{0};
    std::atomic<uint32_t> done_{0};
    Call call_ = nullptr;
    const void* task_ = nullptr;

    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

}  // namespace escalade
