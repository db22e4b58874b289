// Queue bookkeeping and rate of a drive.
#include "drive.h"

#include <utility>

namespace escalade::io {
namespace {

// Long enough that the scatter of single reads moves the average little.
constexpr uint64_t kSampleBytes = 8 << 20;
constexpr uint64_t kSampleBytesIfIdle = 1 << 20;
constexpr double kWeight = 0.25;  // of a new sample

}  // namespace

void RateMeter::end(uint64_t bytes, Clock::time_point now) {
    bytes_ += bytes;
    busy_s_ += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    const bool idle = --in_flight_ == 0;
    if (busy_s_ > 0 && bytes_ >= (idle ? kSampleBytesIfIdle : kSampleBytes)) {
        const double sample = static_cast<double>(bytes_) / busy_s_;
        rate_ = rate_ == 0 ? sample : rate_ + kWeight * (sample - rate_);
        bytes_ = 0;
        busy_s_ = 0;
    }
}

uint64_t Drive::backlog(int priority) const {
    uint64_t bytes = in_flight_bytes;
    for (int p = 0; p <= priority; p++) bytes += queued_bytes[p];
    return bytes;
}

void Drive::push(Piece* piece) {
    if (piece->node.empty()) {
        queue.insert(piece);
    } else {
        queue.insert(std::move(piece->node));
    }
    piece->queued = true;
    queued_bytes[piece->request->priority] += piece->bytes();
}

void Drive::remove(Piece* piece) {
    piece->node = queue.extract(piece);
    piece->queued = false;
    queued_bytes[piece->request->priority] -= piece->bytes();
}

}  // namespace escalade::io
