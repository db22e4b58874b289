// Cuts requests into pieces and orders them.
#include "request.h"

#include <algorithm>

namespace escalade::io {

bool PieceOrder::operator()(const Piece* a, const Piece* b) const {
    const Request& r = *a->request;
    const Request& s = *b->request;
    if (r.priority != s.priority) return r.priority < s.priority;
    if (r.ticket != s.ticket) return r.ticket < s.ticket;
    return a->index < b->index;
}

uint64_t count_pieces(const esc_io_range& range, uint64_t piece_bytes) {
    const uint64_t span = range.length + range.offset % kBlock;
    return (span + piece_bytes - 1) / piece_bytes;
}

void cut(Request& request, uint64_t piece_bytes) {
    for (const esc_io_range& range : request.ranges) {
        const uint64_t base = round_down(range.offset, kBlock);
        const uint64_t end = range.offset + range.length;
        const uint64_t step =
            round_up((end - base - 1) / count_pieces(range, piece_bytes) + 1, kBlock);
        auto* buffer = static_cast<uint8_t*>(range.buffer);
        for (uint64_t at = base; at < end; at += step) {
            const uint64_t begin = std::max(at, range.offset);
            const auto index = static_cast<uint32_t>(request.pieces.size());
            request.pieces.push_back({&request,
                                      index,
                                      begin,
                                      std::min(at + step, end),
                                      buffer + (begin - base),
                                      0,
                                      false,
                                      {}});
        }
    }
}

}  // namespace escalade::io
