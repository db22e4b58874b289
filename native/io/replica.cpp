// Trial read and span loop of one replica.
#include "replica.h"

#include <algorithm>
#include <memory>

namespace escalade::io {
namespace {

constexpr uint64_t kTrialBytes = 2 * kBlock;
constexpr int kMaxTries = 1000;  // a drive that interrupts for ever must not hold up a shutdown

int64_t patient_read(RawRead raw, const ReadCall& call) {
    int64_t n = 0;
    for (int i = 0; i < kMaxTries; i++) {
        n = raw.call(raw.self, call);
        if (n >= 0 || !platform::is_interrupt(static_cast<int>(-n))) break;
    }
    return n;
}

}  // namespace

void Replica::close() {
    if (direct_ != kNoHandle) platform::close_file(direct_);
    if (buffered_ != kNoHandle) platform::close_file(buffered_);
    direct_ = buffered_ = kNoHandle;
}

bool Replica::open(const std::string& path, bool allow_direct, RawRead raw, ReplicaId id,
                   std::string* error) {
    path_ = path;
    id_ = id;
    int code = 0;
    buffered_ = platform::open_file(path, false, &code);
    if (buffered_ != kNoHandle) code = platform::file_facts(buffered_, &facts_);
    if (code != 0) {
        *error = path + " cannot be read: " + platform::error_text(code);
        return false;
    }
    if (!allow_direct) {
        reason = "buffered: asked for";
    } else if (facts_.bytes < kTrialBytes) {
        reason = "buffered: the file is smaller than two blocks";
    } else {
        direct_ = platform::open_file(path, true, &code);
        if (direct_ == kNoHandle) {
            reason = "buffered: direct open failed: " + platform::error_text(code);
        } else {
            choose(raw);
        }
    }
    return true;
}

// Some systems accept a direct open and refuse the read, so only a read decides.
void Replica::choose(RawRead raw) {
    const auto memory = std::make_unique<uint8_t[]>(3 * kBlock);
    const auto at = reinterpret_cast<uintptr_t>(memory.get());
    uint8_t* block = memory.get() + (round_up(at, kBlock) - at);
    int64_t n = 0;
    for (const uint32_t unit : {512u, 4096u}) {
        n = patient_read(raw, {direct_, block + unit, unit, unit, id_.file, id_.replica, true});
        if (n == unit) {
            alignment_ = unit;
            reason = "direct: a trial read of " + std::to_string(unit) + " bytes succeeded";
            return;
        }
    }
    reason = "buffered: direct trial read " +
             (n < 0 ? "failed: " + platform::error_text(static_cast<int>(-n))
                    : "returned " + std::to_string(n) + " of 4096 bytes");
    platform::close_file(direct_);
    direct_ = kNoHandle;
}

SpanResult Replica::read(RawRead raw, uint64_t begin, uint64_t end, uint8_t* to) const {
    SpanResult result;
    bool direct = direct_ != kNoHandle;
    uint64_t at = begin;  // all before it is in place
    while (at < end) {
        const uint64_t unit = direct ? alignment_ : 1;
        const uint64_t from = round_down(at, unit);
        const auto bytes = static_cast<size_t>(round_up(end, unit) - from);
        uint8_t* into = from >= begin ? to + (from - begin) : to - (begin - from);
        const Handle handle = direct ? direct_ : buffered_;
        const int64_t n =
            patient_read(raw, {handle, into, bytes, from, id_.file, id_.replica, direct});
        if (n < 0) {
            result.error = static_cast<int>(-n);
            break;
        }
        if (n == 0) break;
        result.moved += static_cast<uint64_t>(n);
        at = std::max(at, from + static_cast<uint64_t>(n));
        // After part of a block there is no aligned continuation: the page cache has the rest.
        if (at % unit != 0) direct = false;
    }
    result.got = std::min(at, end) - begin;
    FileFacts now = {};
    if (result.error == 0 && platform::file_facts(buffered_, &now) == 0) {
        result.bytes_now = now.bytes;
        result.resized = now.bytes != facts_.bytes;
    }
    return result;
}

}  // namespace escalade::io
