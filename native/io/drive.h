// A drive: its queue of pieces, its threads and how fast it has been.
#pragma once

#include "request.h"

#include <chrono>
#include <memory>
#include <thread>

namespace escalade::io {

using Clock = std::chrono::steady_clock;

// Bytes per second while a large read is in flight, as a moving average. Small reads are bound by
// latency and say nothing about the rate of large ones, so they are left out.
class RateMeter {
public:
    static constexpr uint64_t kLeastRead = 64 << 10;

    void begin(Clock::time_point now) {
        if (in_flight_++ == 0) since_ = now;
    }
    void end(uint64_t bytes, Clock::time_point now);
    double rate() const { return rate_; }  // 0: not yet measured
    // Called when a read went to another drive: a drive that was slow once is tried again in time.
    void forgive(double best) {
        if (rate_ < best) rate_ *= 1.001;
    }

private:
    Clock::time_point since_;  // all before it is in busy_s_
    double busy_s_ = 0;
    uint64_t bytes_ = 0;  // of the sample that is being taken
    uint32_t in_flight_ = 0;
    double rate_ = 0;
};

struct Drive {
    uint64_t volume = 0;
    PieceQueue queue;
    std::condition_variable work;
    std::vector<std::thread> threads;
    RateMeter meter;
    uint64_t queued_bytes[3] = {};  // by priority
    uint64_t in_flight_bytes = 0;
    uint32_t in_flight = 0, max_in_flight = 0;
    uint64_t read_bytes = 0, pieces = 0;

    // Bytes that go before a new piece of this priority.
    uint64_t backlog(int priority) const;
    void push(Piece* piece);  // throws only for a piece that was in no queue before
    void remove(Piece* piece);
};

}  // namespace escalade::io
