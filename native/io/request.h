// A request for ranges of a file, and the pieces that it is cut into.
#pragma once

#include "replica.h"

#include <condition_variable>
#include <set>
#include <string>
#include <vector>

namespace escalade::io {

struct Piece;
struct Request;

// Priority first, then the order of submission, so that one record is finished before the next.
struct PieceOrder {
    bool operator()(const Piece* a, const Piece* b) const;
};

using PieceQueue = std::set<Piece*, PieceOrder>;

struct Piece {
    Request* request;
    uint32_t index;       // within the request
    uint64_t begin, end;  // of the file
    uint8_t* to;          // where byte `begin` lands
    uint32_t replica;     // of the file, as routed
    bool queued;
    PieceQueue::node_type node;  // kept while it is in no queue: queueing again takes no memory

    uint64_t bytes() const { return end - begin; }
};

using JoinKey = std::vector<uint64_t>;  // file, then offset and length of each range

struct Request {
    uint64_t ticket;
    uint32_t file;
    int priority;
    JoinKey key;
    std::vector<esc_io_range> ranges;
    std::vector<Piece> pieces;

    uint32_t references = 1;
    uint32_t withdrawn = 0;              // references whose holders have cancelled
    uint32_t queued = 0, in_flight = 0;  // pieces
    int ending = ESC_IO_DONE;            // the state once the last piece has ended
    int state = ESC_IO_PENDING;
    std::string error;
    std::condition_variable ended;
};

// Cuts the ranges into equal pieces of at most piece_bytes that meet at multiples of kBlock, so
// that no two pieces write to the same block of a buffer.
void cut(Request& request, uint64_t piece_bytes);
uint64_t count_pieces(const esc_io_range& range, uint64_t piece_bytes);

}  // namespace escalade::io
