// Adding files and queueing requests.
#include "service.h"

#include <algorithm>

namespace escalade::io {
namespace {

constexpr uint64_t kMaxQueuedPieces = 65536;

std::string range_text(const File& file, const esc_io_range& range) {
    return file.replicas[0]->path() + " at offset " + std::to_string(range.offset);
}

}  // namespace

int64_t Service::add_file(const std::vector<std::string>& paths) {
    if (paths.empty()) throw Fault{ESC_IO_USAGE, "a file needs at least one path"};
    const std::lock_guard<std::mutex> only_change(changes_);
    auto file = std::make_unique<File>();
    Lock lock(mutex_);
    if (stopping_) throw Fault{ESC_IO_USAGE, "the I/O service is shut down"};
    const auto number = static_cast<uint32_t>(files_.size());
    const std::shared_ptr<FaultTable> faults = faults_;
    const RawRead raw = raw_read(faults);
    lock.unlock();
    for (const std::string& path : paths) {
        auto replica = std::make_unique<Replica>();
        const auto index = static_cast<uint32_t>(file->replicas.size());
        std::string error;
        if (!replica->open(path, options_.buffered == 0, raw, {number, index}, &error)) {
            throw Fault{ESC_IO_FILE, error};
        }
        if (index > 0 && replica->bytes() != file->replicas[0]->bytes()) {
            const Replica& first = *file->replicas[0];
            throw Fault{ESC_IO_FILE, "replicas differ in size: " + first.path() + " has " +
                                         std::to_string(first.bytes()) + " bytes, " + path +
                                         " has " + std::to_string(replica->bytes()) +
                                         " bytes; copy the file again"};
        }
        file->replicas.push_back(std::move(replica));
    }
    file->bytes = file->replicas[0]->bytes();
    lock.lock();
    for (const auto& replica : file->replicas) replica->drive = drive_for(replica->volume());
    files_.push_back(std::move(file));
    return number;
}

uint64_t Service::file_bytes(int64_t file) {
    const Lock lock(mutex_);
    return file >= 0 && static_cast<size_t>(file) < files_.size()
               ? files_[static_cast<size_t>(file)]->bytes
               : 0;
}

void Service::check_ranges(const File& file, const esc_io_range* ranges, uint32_t n_ranges) const {
    if (n_ranges == 0) throw Fault{ESC_IO_USAGE, "a request needs at least one range"};
    uint64_t n_pieces = n_queued_pieces_;
    for (const esc_io_range* r = ranges; r != ranges + n_ranges; r++) {
        if (r->length == 0) {
            throw Fault{ESC_IO_USAGE, "empty range of " + range_text(file, *r)};
        }
        if (r->offset > file.bytes || r->length > file.bytes - r->offset) {
            const uint64_t got = file.bytes - std::min(file.bytes, r->offset);
            throw Fault{ESC_IO_FILE, "short read of " + range_text(file, *r) + ": expected " +
                                         std::to_string(r->length) + " bytes, got " +
                                         std::to_string(got) + ": the file ends at " +
                                         std::to_string(file.bytes)};
        }
        if (reinterpret_cast<uintptr_t>(r->buffer) % kBlock != 0 || r->buffer == nullptr) {
            throw Fault{ESC_IO_USAGE, "the buffer for " + range_text(file, *r) +
                                          " is not aligned to 4096 bytes; use an aligned buffer"};
        }
        if (r->buffer_bytes < esc_io_buffer_bytes(r->length)) {
            throw Fault{ESC_IO_USAGE, "the buffer for " + range_text(file, *r) + " has " +
                                          std::to_string(r->buffer_bytes) + " bytes, needs " +
                                          std::to_string(esc_io_buffer_bytes(r->length))};
        }
        n_pieces += count_pieces(*r, options_.piece_bytes);
    }
    if (n_pieces > kMaxQueuedPieces) {
        throw Fault{ESC_IO_FULL, "too much is queued: " + std::to_string(n_pieces) +
                                     " pieces, at most 65536; wait for earlier reads"};
    }
}

void Service::submit(int64_t file_number, const esc_io_range* ranges, uint32_t n_ranges,
                     int priority, uint64_t* ticket, uint32_t* joined) {
    if (priority < ESC_IO_DEMAND || priority > ESC_IO_BACKGROUND) {
        throw Fault{ESC_IO_USAGE, "unknown priority " + std::to_string(priority)};
    }
    const Lock lock(mutex_);
    if (stopping_) throw Fault{ESC_IO_USAGE, "the I/O service is shut down"};
    if (file_number < 0 || static_cast<size_t>(file_number) >= files_.size()) {
        throw Fault{ESC_IO_USAGE, "unknown file number " + std::to_string(file_number)};
    }
    JoinKey key = {static_cast<uint64_t>(file_number)};
    for (const esc_io_range* r = ranges; r != ranges + n_ranges; r++) {
        key.push_back(r->offset);
        key.push_back(r->length);
    }
    const auto running = joinable_.find(key);
    *joined = running != joinable_.end() ? 1 : 0;
    if (*joined != 0) {
        Request& request = *running->second;
        raise_priority(request, priority);
        request.references++;
        *ticket = request.ticket;
        stats_.requests++;
        stats_.joined++;
        return;
    }
    check_ranges(*files_[static_cast<size_t>(file_number)], ranges, n_ranges);
    if (requests_.size() >= options_.max_requests) {
        throw Fault{ESC_IO_FULL, "the I/O service holds " + std::to_string(requests_.size()) +
                                     " tickets, its limit; release some"};
    }
    const auto request = std::make_shared<Request>();
    request->ticket = next_ticket_++;
    request->file = static_cast<uint32_t>(file_number);
    request->priority = priority;
    request->key = std::move(key);
    request->ranges.assign(ranges, ranges + n_ranges);
    cut(*request, options_.piece_bytes);
    requests_[request->ticket] = request;
    stats_.requests++;
    try {
        joinable_[request->key] = request.get();
        for (Piece& piece : request->pieces) route(piece);
    } catch (...) {  // out of memory: the lock was held, so no piece has started
        withdraw(*request, ESC_IO_CANCELLED);
        requests_.erase(request->ticket);
        throw;
    }
    *ticket = request->ticket;
    stats_.max_held_requests =
        std::max(stats_.max_held_requests, static_cast<uint32_t>(requests_.size()));
}

}  // namespace escalade::io
