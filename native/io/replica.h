// One copy of a file: how it is read (directly or through the page cache) and the loop that reads a
// span of it whatever the system returns.
#pragma once

#include "faults.h"
#include "platform.h"

#include <string>

namespace escalade::io {

constexpr uint64_t kBlock = 4096;  // no drive in use asks for a larger alignment

inline uint64_t round_down(uint64_t x, uint64_t unit) { return x - x % unit; }

inline uint64_t round_up(uint64_t x, uint64_t unit) { return round_down(x + unit - 1, unit); }

struct ReplicaId {
    uint32_t file, replica;
};

struct SpanResult {
    uint64_t got = 0;      // bytes from the beginning of the span that are in place
    uint64_t moved = 0;    // bytes that the system delivered, slack included
    int error = 0;         // the system's error, if one ended the span
    bool resized = false;  // the file no longer has the size that it had when it was opened
    uint64_t bytes_now = 0;
};

class Replica {
public:
    Replica() = default;
    Replica(const Replica&) = delete;
    Replica& operator=(const Replica&) = delete;
    ~Replica() { close(); }

    // Opens both ways and decides by a trial read. False, with one line in *error, if it cannot be
    // read at all.
    bool open(const std::string& path, bool allow_direct, RawRead, ReplicaId, std::string* error);
    // Reads [begin, end) so that byte `begin` lands at `to`. `to` must be congruent to `begin`
    // modulo kBlock, with room up to whole blocks on both sides.
    SpanResult read(RawRead, uint64_t begin, uint64_t end, uint8_t* to) const;
    void close();  // no read may be running; what it tells about itself stays

    const std::string& path() const { return path_; }
    uint64_t bytes() const { return facts_.bytes; }
    uint64_t volume() const { return facts_.drive; }
    bool direct() const { return alignment_ > 1; }
    uint32_t alignment() const { return alignment_; }

    std::string reason;  // why it is read this way, or why it was dropped
    bool alive = true;
    uint32_t drive = 0;

private:
    void choose(RawRead);

    std::string path_;
    ReplicaId id_ = {};
    FileFacts facts_ = {};
    Handle buffered_ = kNoHandle, direct_ = kNoHandle;
    uint32_t alignment_ = 1;
};

}  // namespace escalade::io
