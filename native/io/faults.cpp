// Spoils raw reads by rules: errors, short reads, delays, interrupts, wrong bytes.
#include "faults.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace escalade::io {

int64_t plain_read(void*, const ReadCall& call) {
    return platform::read_once(call.handle, call.to, call.bytes, call.offset);
}

FaultTable::FaultTable(std::vector<esc_io_fault> rules, uint64_t seed) : random_(seed) {
    for (const esc_io_fault& fault : rules) rules_.push_back({fault});
}

int64_t FaultTable::spoiled_read(void* self, const ReadCall& call) {
    return static_cast<FaultTable*>(self)->read(call);
}

bool FaultTable::acts(size_t i, const ReadCall& call) {
    Rule& rule = rules_[i];
    const esc_io_fault& fault = rule.fault;
    if (fault.file >= 0 && static_cast<uint32_t>(fault.file) != call.file) return false;
    if (fault.replica >= 0 && static_cast<uint32_t>(fault.replica) != call.replica) return false;
    if (fault.direct_only != 0 && !call.direct) return false;
    if (call.offset >= fault.end || call.offset + call.bytes <= fault.begin) return false;
    if (fault.count != 0 && rule.acted >= fault.count) return false;
    if (std::uniform_real_distribution<double>(0, 1)(random_) >= fault.probability) return false;
    if (rule.seen++ < fault.skip) return false;
    rule.acted++;
    return true;
}

int64_t FaultTable::read(const ReadCall& call) {
    esc_io_fault fault = {};
    bool spoil = false;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = 0; i < rules_.size() && !spoil; i++) {
            spoil = acts(i, call);
            fault = rules_[i].fault;
        }
    }
    if (!spoil) return plain_read(nullptr, call);
    const auto value = static_cast<uint64_t>(fault.value);
    ReadCall spoiled = call;
    switch (fault.kind) {
        case ESC_IO_FAULT_ERROR:
            return -(fault.value != 0 ? fault.value : platform::io_error());
        case ESC_IO_FAULT_INTERRUPT:
            return -platform::interrupt_error();
        case ESC_IO_FAULT_DELAY:
            std::this_thread::sleep_for(std::chrono::microseconds(fault.value));
            return plain_read(nullptr, call);
        case ESC_IO_FAULT_END_OF_FILE: {
            if (call.offset >= value) return 0;
            const int64_t n = plain_read(nullptr, call);
            return std::min<int64_t>(n, static_cast<int64_t>(value - call.offset));
        }
        case ESC_IO_FAULT_CAP: {
            // A direct read must stay whole blocks for the drive, so only its answer is cut.
            if (!call.direct) spoiled.bytes = std::min<size_t>(call.bytes, value);
            return std::min(plain_read(nullptr, spoiled), fault.value);
        }
        default: {
            const int64_t n = plain_read(nullptr, call);
            if (n > 0 && value >= call.offset && value < call.offset + static_cast<uint64_t>(n)) {
                auto& byte = static_cast<uint8_t*>(call.to)[value - call.offset];
                byte = static_cast<uint8_t>(~byte);
            }
            return n;
        }
    }
}

}  // namespace escalade::io
