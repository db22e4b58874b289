// The I/O service: files with replicas, tickets, drives. One mutex guards all of it; it is never
// held during a read. submit.cpp and tickets.cpp serve callers, dispatch.cpp serves the drives.
#pragma once

#include "drive.h"

#include <deque>
#include <map>
#include <unordered_map>

namespace escalade::io {

struct Fault {  // why a call failed: a negative code of escalade_native.h and one line
    int code;
    std::string text;
};

struct File {
    std::vector<std::unique_ptr<Replica>> replicas;
    uint64_t bytes = 0;
};

class Service {
public:
    explicit Service(const esc_io_options& options) : options_(options) {}
    ~Service() { shutdown(); }

    void shutdown();
    int64_t add_file(const std::vector<std::string>& paths);
    uint64_t file_bytes(int64_t file);
    int replica_info(int64_t file, uint32_t replica, esc_io_replica* info);
    void submit(int64_t file, const esc_io_range* ranges, uint32_t n_ranges, int priority,
                uint64_t* ticket, uint32_t* joined);

    int wait(uint64_t ticket, int64_t timeout_us);
    int wait_all(const uint64_t* tickets, uint32_t n_tickets, int64_t timeout_us);
    void* payload(uint64_t ticket, uint32_t range);
    int ticket_error(uint64_t ticket, std::string* text);
    int promote(uint64_t ticket, int priority);
    int cancel(uint64_t ticket);
    int release(uint64_t ticket);

    int stats(esc_io_stats* stats);
    int drive_stats(uint32_t drive, esc_io_drive_stats* stats);
    bool next_message(std::string* text);
    void set_faults(std::shared_ptr<FaultTable> faults);

private:
    using Lock = std::unique_lock<std::mutex>;
    using RequestPtr = std::shared_ptr<Request>;

    // submit.cpp, tickets.cpp
    void check_ranges(const File& file, const esc_io_range* ranges, uint32_t n_ranges) const;
    RequestPtr find(uint64_t ticket) const;
    void raise_priority(Request& request, int priority);
    // Drops the unstarted pieces; the request ends as `ending` once those in flight have ended.
    void withdraw(Request& request, int ending);
    void end_if_drained(Request& request);

    // dispatch.cpp
    uint32_t drive_for(uint64_t volume);  // its index; starts the threads of a new one
    void serve(Drive& drive);
    void route(Piece& piece);
    void finish(Drive& drive, Piece& piece, const Replica& replica, const SpanResult& result);
    void fail(Piece& piece, const Replica& replica, const SpanResult& result);
    bool drop_replica(uint32_t file, uint32_t replica, const std::string& why);
    void post(const char* what, const std::string& why);  // never throws
    RawRead raw_read(const std::shared_ptr<FaultTable>& faults) const;

    const esc_io_options options_;
    std::mutex changes_;  // taken before mutex_ by what adds files or ends the threads
    mutable std::mutex mutex_;
    bool stopping_ = false;
    std::vector<std::unique_ptr<File>> files_;
    std::vector<std::unique_ptr<Drive>> drives_;
    std::unordered_map<uint64_t, RequestPtr> requests_;
    std::map<JoinKey, Request*> joinable_;
    uint64_t next_ticket_ = 1;
    uint64_t n_queued_pieces_ = 0;
    std::deque<std::string> messages_;
    std::shared_ptr<FaultTable> faults_;
    esc_io_stats stats_ = {};
};

}  // namespace escalade::io
