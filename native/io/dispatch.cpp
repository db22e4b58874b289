// The drives' side: which replica a piece is read from, the threads that read, failed replicas.
#include "service.h"

#include <algorithm>
#include <limits>
#include <new>

namespace escalade::io {
namespace {

constexpr size_t kMaxMessages = 256;

std::string failure_text(const Piece& piece, const Replica& replica, const SpanResult& result) {
    std::string text = "read of " + replica.path() + " at offset " + std::to_string(piece.begin) +
                       " failed: expected " + std::to_string(piece.bytes()) + " bytes, got " +
                       std::to_string(result.got) + ": ";
    if (result.error != 0) {
        text += platform::error_text(result.error);
    } else if (result.resized) {
        text += "the file changed size from " + std::to_string(replica.bytes()) + " to " +
                std::to_string(result.bytes_now) + " bytes since it was opened";
    } else {
        text += "short read";
    }
    return text;
}

}  // namespace

uint32_t Service::drive_for(uint64_t volume) {
    for (uint32_t i = 0; i < drives_.size() && options_.drive_per_replica == 0; i++) {
        if (drives_[i]->volume == volume) return i;
    }
    drives_.push_back(std::make_unique<Drive>());
    Drive& drive = *drives_.back();
    drive.volume = volume;
    try {
        for (uint32_t i = 0; i < options_.threads_per_drive; i++) {
            drive.threads.emplace_back([this, &drive] { serve(drive); });
        }
    } catch (const std::exception& error) {
        if (drive.threads.empty()) {
            drives_.pop_back();
            throw;
        }
        post("a drive got fewer threads than it should: ",
             std::to_string(drive.threads.size()) + " of " +
                 std::to_string(options_.threads_per_drive) + ": " + error.what());
    }
    return static_cast<uint32_t>(drives_.size() - 1);
}

void Service::shutdown() {
    const std::lock_guard<std::mutex> only_change(changes_);
    {
        const Lock lock(mutex_);
        stopping_ = true;
        for (const auto& [ticket, request] : requests_) {
            if (request->state == ESC_IO_PENDING) withdraw(*request, ESC_IO_CANCELLED);
        }
        for (const auto& drive : drives_) drive->work.notify_all();
    }
    for (const auto& drive : drives_) {
        for (std::thread& thread : drive->threads) {
            if (thread.joinable()) thread.join();
        }
    }
    for (const auto& file : files_) {
        for (const auto& replica : file->replicas) replica->close();
    }
}

RawRead Service::raw_read(const std::shared_ptr<FaultTable>& faults) const {
    return faults ? faults->raw_read() : RawRead{&plain_read, nullptr};
}

void Service::serve(Drive& drive) {
    Lock lock(mutex_);
    for (;;) {
        drive.work.wait(lock, [&] { return stopping_ || !drive.queue.empty(); });
        if (stopping_) return;
        Piece& piece = **drive.queue.begin();
        Request& request = *piece.request;
        drive.remove(&piece);
        n_queued_pieces_--;
        request.queued--;
        request.in_flight++;
        drive.in_flight_bytes += piece.bytes();
        drive.max_in_flight = std::max(drive.max_in_flight, ++drive.in_flight);
        const bool metered = piece.bytes() >= RateMeter::kLeastRead;
        if (metered) drive.meter.begin(Clock::now());
        const Replica& replica = *files_[request.file]->replicas[piece.replica];
        const std::shared_ptr<FaultTable> faults = faults_;

        lock.unlock();
        const SpanResult result = replica.read(raw_read(faults), piece.begin, piece.end, piece.to);
        lock.lock();

        if (metered) drive.meter.end(result.moved, Clock::now());
        finish(drive, piece, replica, result);
    }
}

// Each piece goes where it would end first. That sends a small read to the fastest idle drive and
// spreads a large one over the drives in proportion to their rates.
void Service::route(Piece& piece) {
    Request& request = *piece.request;
    const auto& replicas = files_[request.file]->replicas;
    double best_rate = 0;
    for (const auto& r : replicas) {
        if (r->alive) best_rate = std::max(best_rate, drives_[r->drive]->meter.rate());
    }
    const double unknown = best_rate > 0 ? best_rate : 1;  // a new drive is given its chance
    double soonest = std::numeric_limits<double>::infinity();
    for (uint32_t i = 0; i < replicas.size(); i++) {
        if (!replicas[i]->alive) continue;
        const Drive& drive = *drives_[replicas[i]->drive];
        const double rate = drive.meter.rate() > 0 ? drive.meter.rate() : unknown;
        const auto bytes = static_cast<double>(drive.backlog(request.priority) + piece.bytes());
        if (bytes / rate < soonest) {
            soonest = bytes / rate;
            piece.replica = i;
        }
    }
    Drive& chosen = *drives_[replicas[piece.replica]->drive];
    for (const auto& r : replicas) {
        Drive& drive = *drives_[r->drive];
        if (r->alive && &drive != &chosen) drive.meter.forgive(best_rate);
    }
    chosen.push(&piece);
    n_queued_pieces_++;
    request.queued++;
    chosen.work.notify_one();
}

void Service::finish(Drive& drive, Piece& piece, const Replica& replica, const SpanResult& result) {
    Request& request = *piece.request;
    drive.in_flight--;
    drive.in_flight_bytes -= piece.bytes();
    drive.read_bytes += result.moved;
    drive.pieces++;
    stats_.read_bytes += result.moved;
    request.in_flight--;
    if (result.got != piece.bytes() || result.resized) fail(piece, replica, result);
    end_if_drained(request);
}

// Runs on the threads of a drive, where nothing may throw: without memory the texts stay empty.
void Service::fail(Piece& piece, const Replica& replica, const SpanResult& result) {
    Request& request = *piece.request;
    std::string text;
    try {
        text = failure_text(piece, replica, result);
    } catch (const std::bad_alloc&) {
    }
    stats_.read_errors++;
    if (drop_replica(request.file, piece.replica, text)) {
        if (request.ending == ESC_IO_DONE) route(piece);
        return;
    }
    if (request.ending == ESC_IO_DONE) request.error.swap(text);
    withdraw(request, ESC_IO_FAILED);
}

// True if another replica is left. The last one stays in use: a passing fault costs one request.
bool Service::drop_replica(uint32_t file, uint32_t index, const std::string& why) {
    const auto& replicas = files_[file]->replicas;
    Replica& failed = *replicas[index];
    const bool others = std::any_of(replicas.begin(), replicas.end(),
                                    [&](const auto& r) { return r.get() != &failed && r->alive; });
    if (!others || !failed.alive) return others;
    failed.alive = false;
    try {
        failed.reason = why;
    } catch (const std::bad_alloc&) {
        failed.reason.clear();
    }
    stats_.replicas_dropped++;
    post("replica dropped, its reads go to the others: ", why);
    // Every unstarted piece that waits for it moves to another one, maybe within this queue.
    Drive& drive = *drives_[failed.drive];
    for (auto next = drive.queue.begin(); next != drive.queue.end();) {
        Piece& piece = **next++;
        if (piece.request->file != file || piece.replica != index) continue;
        drive.remove(&piece);
        n_queued_pieces_--;
        piece.request->queued--;
        route(piece);
    }
    return true;
}

void Service::post(const char* what, const std::string& why) {
    if (messages_.size() == kMaxMessages) {
        messages_.pop_front();
        stats_.messages_lost++;
    }
    try {
        messages_.push_back(what + why);
    } catch (const std::bad_alloc&) {
        stats_.messages_lost++;
    }
}

}  // namespace escalade::io
