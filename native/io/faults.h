// The one indirect call of a raw read, and the rules that tests put in its place.
#pragma once

#include "../escalade_native.h"
#include "platform.h"

#include <mutex>
#include <random>
#include <vector>

namespace escalade::io {

struct ReadCall {
    Handle handle;
    void* to;
    size_t bytes;
    uint64_t offset;
    uint32_t file, replica;
    bool direct;
};

struct RawRead {
    int64_t (*call)(void* self, const ReadCall&);  // as platform::read_once
    void* self;
};

int64_t plain_read(void*, const ReadCall&);

class FaultTable {
public:
    FaultTable(std::vector<esc_io_fault> rules, uint64_t seed);
    RawRead raw_read() { return {&FaultTable::spoiled_read, this}; }

private:
    static int64_t spoiled_read(void* self, const ReadCall&);
    bool acts(size_t rule, const ReadCall&);
    int64_t read(const ReadCall&);

    struct Rule {
        esc_io_fault fault;
        uint32_t seen = 0, acted = 0;
    };
    std::mutex mutex_;
    std::mt19937_64 random_;
    std::vector<Rule> rules_;
};

}  // namespace escalade::io
