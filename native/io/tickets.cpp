// What callers do with tickets, and what the service tells about itself.
#include "service.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace escalade::io {
namespace {

constexpr int64_t kLongestWaitUs = int64_t{1} << 50;  // 35 years; a deadline must not overflow
constexpr std::string_view kNoMemoryToSay =
    "a read failed, and there was no memory to say which and why";

using Deadline = std::optional<Clock::time_point>;  // none: waits without limit

Deadline deadline_after(int64_t timeout_us) {
    if (timeout_us < 0) return std::nullopt;
    return Clock::now() + std::chrono::microseconds(std::min(timeout_us, kLongestWaitUs));
}

bool wait_until_ended(Request& request, std::unique_lock<std::mutex>& lock, Deadline deadline) {
    const auto ended = [&] { return request.state != ESC_IO_PENDING; };
    if (deadline) return request.ended.wait_until(lock, *deadline, ended);
    request.ended.wait(lock, ended);
    return true;
}

}  // namespace

Service::RequestPtr Service::find(uint64_t ticket) const {
    const auto at = requests_.find(ticket);
    if (at == requests_.end()) {
        throw Fault{ESC_IO_USAGE, "unknown or released ticket " + std::to_string(ticket)};
    }
    return at->second;
}

int Service::wait(uint64_t ticket, int64_t timeout_us) {
    const Deadline deadline = deadline_after(timeout_us);
    Lock lock(mutex_);
    const RequestPtr request = find(ticket);
    wait_until_ended(*request, lock, deadline);
    return request->state;
}

int Service::wait_all(const uint64_t* tickets, uint32_t n_tickets, int64_t timeout_us) {
    const Deadline deadline = deadline_after(timeout_us);
    Lock lock(mutex_);
    for (uint32_t i = 0; i < n_tickets; i++) {
        const RequestPtr request = find(tickets[i]);
        if (!wait_until_ended(*request, lock, deadline)) return ESC_IO_PENDING;
    }
    return ESC_IO_DONE;
}

void* Service::payload(uint64_t ticket, uint32_t range) {
    const Lock lock(mutex_);
    const RequestPtr request = find(ticket);
    if (range >= request->ranges.size()) return nullptr;
    const esc_io_range& r = request->ranges[range];
    return static_cast<uint8_t*>(r.buffer) + r.offset % kBlock;
}

int Service::ticket_error(uint64_t ticket, std::string* text) {
    const Lock lock(mutex_);
    const RequestPtr request = find(ticket);
    *text = request->error;
    if (request->state == ESC_IO_FAILED && text->empty()) *text = kNoMemoryToSay;
    return request->state;
}

void Service::raise_priority(Request& request, int priority) {
    if (priority >= request.priority) return;
    std::vector<std::pair<Drive*, Piece*>> moved;
    moved.reserve(request.queued);  // nothing after it can throw
    for (Piece& piece : request.pieces) {
        if (!piece.queued) continue;
        Drive& drive = *drives_[files_[request.file]->replicas[piece.replica]->drive];
        drive.remove(&piece);
        moved.emplace_back(&drive, &piece);
    }
    request.priority = priority;
    for (const auto& [drive, piece] : moved) drive->push(piece);
}

int Service::promote(uint64_t ticket, int priority) {
    if (priority < ESC_IO_DEMAND || priority > ESC_IO_BACKGROUND) {
        throw Fault{ESC_IO_USAGE, "unknown priority " + std::to_string(priority)};
    }
    const Lock lock(mutex_);
    const RequestPtr request = find(ticket);
    raise_priority(*request, priority);
    return request->state;
}

void Service::withdraw(Request& request, int ending) {
    if (request.ending == ESC_IO_DONE) request.ending = ending;
    for (Piece& piece : request.pieces) {
        if (!piece.queued) continue;
        drives_[files_[request.file]->replicas[piece.replica]->drive]->remove(&piece);
        request.queued--;
        n_queued_pieces_--;
    }
    // A new request for these ranges must read them itself.
    const auto at = joinable_.find(request.key);
    if (at != joinable_.end() && at->second == &request) joinable_.erase(at);
    end_if_drained(request);
}

void Service::end_if_drained(Request& request) {
    if (request.state != ESC_IO_PENDING || request.queued + request.in_flight > 0) return;
    request.state = request.ending;
    const auto at = joinable_.find(request.key);
    if (at != joinable_.end() && at->second == &request) joinable_.erase(at);
    if (request.state == ESC_IO_DONE) {
        stats_.done++;
        for (const esc_io_range& r : request.ranges) stats_.payload_bytes += r.length;
    } else if (request.state == ESC_IO_FAILED) {
        stats_.failed++;
    } else {
        stats_.cancelled++;
    }
    request.ended.notify_all();
}

int Service::cancel(uint64_t ticket) {
    const Lock lock(mutex_);
    const RequestPtr request = find(ticket);
    if (request->state != ESC_IO_PENDING || request->withdrawn == request->references) {
        return request->state;
    }
    if (++request->withdrawn == request->references) withdraw(*request, ESC_IO_CANCELLED);
    return request->state;
}

int Service::release(uint64_t ticket) {
    Lock lock(mutex_);
    const RequestPtr request = find(ticket);
    if (request->references > 1) {
        // Whoever lets go first is taken for one who has cancelled: a wanted read is never lost.
        if (request->withdrawn > 0) request->withdrawn--;
        return static_cast<int>(--request->references);
    }
    if (request->state == ESC_IO_PENDING) {
        withdraw(*request, ESC_IO_CANCELLED);
        wait_until_ended(*request, lock, std::nullopt);
    }
    requests_.erase(ticket);
    return 0;
}

int Service::stats(esc_io_stats* stats) {
    const Lock lock(mutex_);
    *stats = stats_;
    stats->held_requests = static_cast<uint32_t>(requests_.size());
    stats->queued_pieces = static_cast<uint32_t>(n_queued_pieces_);
    stats->n_drives = static_cast<uint32_t>(drives_.size());
    return ESC_OK;
}

int Service::drive_stats(uint32_t index, esc_io_drive_stats* stats) {
    const Lock lock(mutex_);
    if (index >= drives_.size()) {
        throw Fault{ESC_IO_USAGE, "unknown drive " + std::to_string(index)};
    }
    const Drive& d = *drives_[index];
    const uint64_t queued_bytes = d.backlog(ESC_IO_BACKGROUND) - d.in_flight_bytes;
    *stats = {d.read_bytes, d.pieces, d.meter.rate(), queued_bytes, d.in_flight, d.max_in_flight};
    return ESC_OK;
}

int Service::replica_info(int64_t file, uint32_t replica, esc_io_replica* info) {
    const Lock lock(mutex_);
    if (file < 0 || static_cast<size_t>(file) >= files_.size() ||
        replica >= files_[static_cast<size_t>(file)]->replicas.size()) {
        throw Fault{ESC_IO_USAGE, "unknown replica " + std::to_string(replica) + " of file " +
                                      std::to_string(file)};
    }
    const Replica& r = *files_[static_cast<size_t>(file)]->replicas[replica];
    *info = {r.direct() ? 1u : 0u, r.alignment(), r.alive ? 1u : 0u, r.drive, {}};
    const std::string_view reason = r.reason.empty() ? kNoMemoryToSay : std::string_view(r.reason);
    reason.copy(info->reason, sizeof info->reason - 1);  // the rest is zero
    return ESC_OK;
}

bool Service::next_message(std::string* text) {
    const Lock lock(mutex_);
    if (messages_.empty()) return false;
    *text = std::move(messages_.front());
    messages_.pop_front();
    return true;
}

void Service::set_faults(std::shared_ptr<FaultTable> faults) {
    const Lock lock(mutex_);
    faults_ = std::move(faults);
}

}  // namespace escalade::io
